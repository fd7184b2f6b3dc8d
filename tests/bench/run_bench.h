// Runs dp_bench and collects its exit status and output.
#pragma once

#include <string>

namespace dp::test {

struct BenchOutcome {
  int code = -1;
  std::string text;  // stdout and stderr
};
// `arguments` is shell text.
BenchOutcome run_bench(const std::string& arguments);
BenchOutcome run_shell(const std::string& command);

}  // namespace dp::test
