// Which build finds which planted bug. This test checks the table of docs/internals/simulated_cuda.md.
#include <sys/wait.h>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "support/catch.h"
#include "support/temporary_folder.h"

namespace dp::test {
namespace {

constexpr std::array kBuilds{"plain", "race", "address", "thread"};

struct Outcome {
  int status;
  std::string output;

  bool says(const char* text) const { return output.find(text) != std::string::npos; }
};

Outcome run(const std::string& build, const std::string& arguments) {
  // Disables the sanitizers' slow symbolisation.
  const std::string options = "ASAN_OPTIONS=symbolize=0 TSAN_OPTIONS=symbolize=0 UBSAN_OPTIONS=symbolize=0 ";
  const std::string command = options + DP_PLANTED + build + " " + arguments + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  Outcome outcome{0, {}};
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// The tool that found the bug.
std::string verdict(const Outcome& outcome) {
  if (outcome.says("ERROR: AddressSanitizer")) return "ASan";
  if (outcome.says("runtime error: ")) return "UBSan";
  if (outcome.says("WARNING: ThreadSanitizer")) return "TSan";
  if (outcome.status == 99) return "fault";
  if (outcome.says("rule: race in ")) return "race";
  if (outcome.says("rule: missing wait: ")) return "missing wait";
  if (outcome.says("rule: ")) return "rule";
  if (outcome.says("result: ")) return "result";
  return outcome.status == 0 ? "" : "status " + std::to_string(outcome.status);
}

std::string measured_table() {
  std::string table = "| bug | plain | race build | ASan, UBSan | TSan |\n|---|---|---|---|---|\n";
  for (const std::string& line : lines_of(run("plain", "list").output)) {
    const std::string name = line.substr(0, line.find('|')), what = line.substr(line.find('|') + 1);
    std::string row = "| " + what + " |";
    for (const char* const build : kBuilds) {
      const std::string found = verdict(run(build, name + " wrong"));
      row += found.empty() ? " |" : " " + found + " |";
    }
    table += row + "\n";
  }
  return table;
}

}  // namespace

TEST_CASE("planted bugs: nothing is reported without the mistakes") {
  for (const char* const build : kBuilds) {
    const Outcome outcome = run(build, "all");
    INFO(build << ":\n" << outcome.output);
    CHECK(outcome.status == 0);
    CHECK(outcome.output.empty());
  }
}

TEST_CASE("planted bugs: each is found by the builds that the page on the simulated CUDA names") {
  const std::string table = measured_table();
  INFO(table);
  CHECK(table.find("| | | | |") == std::string::npos);
  CHECK(read_text(DP_SIMT_PAGE).find(table) != std::string::npos);
}

TEST_CASE("planted bugs: reports name kernel, device, thread and line") {
  CHECK(run("plain", "two_barriers wrong")
            .says("kernel two_barriers_kernel on cuda:0: block 0 thread 32: __syncthreads at "
                  "kernels.cu:"));
  CHECK(
      run("plain", "host_reads_device_memory wrong").says("simulated CUDA: host code touched memory of cuda:0 at 0x"));
  CHECK(run("plain", "hidden_peer_without_access wrong")
            .says("add_one_behind_kernel on cuda:0 (block 0 thread 0) touched memory of cuda:1, which is no peer"));
  const Outcome wait = run("race", "missing_wait_of_peer wrong");
  CHECK(wait.says("kernel add_one_kernel on stream 1 of cuda:0"));
  CHECK(wait.says("kernel add_one_kernel on stream 2 of cuda:1"));
  CHECK(wait.says("no event orders them"));
  CHECK(run("race", "missing_barrier wrong").says("of shared row: read by block 0 thread 31"));
}

TEST_CASE("planted bugs: switching contexts by the C library finds the same bugs") {
  const Outcome right = run("portable", "all");
  CHECK((right.status == 0 && right.output.empty()));
  for (const char* const bug : {"missing_barrier wrong", "two_barriers wrong", "missing_lanes wrong"})
    CHECK(run("portable", bug).output == run("plain", bug).output);
}

TEST_CASE("planted bugs: unread reports make the process fail") {
  CHECK(run("plain", "two_barriers untaken").status == 97);
  CHECK(run("race", "missing_barrier untaken").status == 97);
}

}  // namespace dp::test
