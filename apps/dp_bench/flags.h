// What the command line asks for.
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

// The work that the arguments ask for; nothing when they asked for help, which is printed. dp::Error(usage).
std::optional<Asked> parse_arguments(int argc, const char* const* argv);

}  // namespace dp_bench
