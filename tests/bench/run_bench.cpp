#include "bench/run_bench.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>

namespace dp::test {

BenchOutcome run_shell(const std::string& command) {
  BenchOutcome outcome;
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) outcome.text.append(part.data(), got);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

BenchOutcome run_bench(const std::string& arguments) { return run_shell(std::string(DP_BENCH_PATH) + " " + arguments); }

}  // namespace dp::test
