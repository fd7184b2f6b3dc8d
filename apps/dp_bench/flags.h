// The command line of dp_bench.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "report/report.h"

namespace dp_bench {

struct Output {
  std::string json, html, markdown;  // files to write; empty: none
};

struct Asked {
  std::function<Report()> work;
  Output output;
};

// The requested work. Nullopt after printing --help or --version. dp::Error(usage) for invalid arguments.
std::optional<Asked> parse_arguments(int argc, const char* const* argv);

}  // namespace dp_bench
