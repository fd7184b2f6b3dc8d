#include "bench/run_bench.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>

#include "support/catch.h"
#include "support/temporary_folder.h"

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

nlohmann::json run_for_json(const std::string& arguments) {
  const TemporaryFolder folder;
  const BenchOutcome outcome = run_bench(arguments + " --json " + (folder / "out.json"));
  INFO(outcome.text);
  REQUIRE(outcome.code == 0);
  return nlohmann::json::parse(read_text(folder / "out.json"));
}

const nlohmann::json& row_of(const nlohmann::json& section, const std::string& column, const std::string& value) {
  for (const nlohmann::json& row : section.at("rows"))
    if (row.at(column) == value) return row;
  FAIL("no row " << value);
  return section;
}

}  // namespace dp::test
