// Values of --amp in the measured programs.
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>

#include "dp/data_parallel.h"

namespace dp::benchmarks {

inline CLI::CheckedTransformer amp_names() {
  return CLI::CheckedTransformer(
      std::map<std::string, Amp>{{"off", Amp::off}, {"bf16", Amp::bfloat16}, {"fp16", Amp::float16}});
}

}  // namespace dp::benchmarks
