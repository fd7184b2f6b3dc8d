// Runs dp_bench and looks at what it leaves.
#pragma once

#include <string>

namespace dp::test {

struct BenchOutcome {
  int code = -1;
  std::string text;  // stdout and stderr
};
// The arguments as a shell reads them.
BenchOutcome run_bench(const std::string& arguments);
BenchOutcome run_shell(const std::string& command);

}  // namespace dp::test
