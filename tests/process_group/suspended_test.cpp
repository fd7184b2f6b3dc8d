// Ranks stopped by a signal: a single rank, or all ranks together.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <regex>

#include "apps/processes.h"
#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

constexpr auto kLongestTimeout = std::chrono::seconds(6);

// A run of `ranks`, past its start. A rank that gets no core for --timeout ends it at any time.
struct Run {
  TemporaryFolder folder;
  Program program;
  explicit Run(int ranks, const std::string& timeout = "5", const Words& launcher = {})  // its output fits in a pipe
      : program(Words{"--engine",
                      "ddp",
                      "--cpu",
                      std::to_string(ranks),
                      "--dataset",
                      "synthetic",
                      "--model",
                      "mlp",
                      "-b",
                      "24",
                      "--epochs",
                      "1000000",
                      "--lr",
                      "0",
                      "-p",
                      "2000",
                      "--threads-per-replica",
                      "1",
                      "--timeout",
                      timeout,
                      "--output-dir",
                      folder / "run"},
                folder.path(), {}, launcher, launcher.empty() ? Program::Group::own : Program::Group::of_the_test) {
    program.wait_for("   0/");
  }
  // The process of this rank, found by its environment.
  pid_t process_of(int rank) const {
    for (const pid_t id : processes_with(folder / "run")) {
      const std::string variables = read_text("/proc/" + std::to_string(id) + "/environ");
      if (variables.find(std::string(1, '\0') + "RANK=" + std::to_string(rank) + '\0') != std::string::npos) return id;
    }
    return -1;
  }
};

bool all_stopped(const std::vector<pid_t>& processes) {
  return std::all_of(processes.begin(), processes.end(), [](pid_t id) { return state_of(id) == 'T'; });
}

bool none_stopped(const std::vector<pid_t>& processes) {
  return std::none_of(processes.begin(), processes.end(), [](pid_t id) { return state_of(id) == 'T'; });
}

// Another rank may be named in one of the tries, because it gets no core.
constexpr int kTries = 3;

bool names_stopped_rank(int stopped) {
  Run run(3);
  const pid_t id = run.process_of(stopped);
  if (id < 0 || ::kill(id, SIGSTOP) != 0) return false;  // the run has ended
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run.program.wait();
  UNSCOPED_INFO("rank " << stopped << ": code " << outcome.code << "\n" << outcome.err);
  CHECK(in_time(begin, 15));
  // Reported by ranks that wait for the stopped rank's gradients, by rank 0 that waits for its message, or by ranks
  // that wait for rank 0.
  // A rank that is slow to answer may be named beside it.
  const std::regex named("ranks? (\\d(, | and |, rank ))*" + std::to_string(stopped) +
                         "[, rank0-9]*( of 3)? (did not answer \\(is its process stopped\\?\\)|did not reach "
                         "exchange|failed: it sent nothing)");
  CHECK(all_gone(run.folder / "run"));
  return outcome.code == 6 && std::regex_search(outcome.err, named);
}

bool continues_after_suspension() {
  Run run(2);
  const std::vector<pid_t> processes = processes_with(run.folder / "run");
  if (processes.size() != 3) return false;  // the run has ended
  REQUIRE(::kill(run.program.id(), SIGTSTP) == 0);
  becomes([&] { return all_stopped(processes) || run.program.has_ended(); });
  std::this_thread::sleep_for(kLongestTimeout);
  const bool suspended = all_stopped(processes);
  REQUIRE(::kill(run.program.id(), SIGCONT) == 0);
  std::this_thread::sleep_for(kLongestTimeout);
  const bool continued = becomes([&] { return none_stopped(processes); });
  REQUIRE(::kill(run.program.id(), SIGINT) == 0);
  const Outcome outcome = run.program.wait();
  UNSCOPED_INFO("suspended: " << suspended << ", continued: " << continued << ", code " << outcome.code << "\n"
                              << outcome.err);
  return suspended && continued && outcome.code == 130 && outcome.err.find("error") == std::string::npos;
}

}  // namespace

TEST_CASE("a rank whose process is stopped is named, and all ranks end") {
  for (const int stopped : {0, 1}) {
    bool named = false;
    for (int tries = 0; tries < kTries && !named; ++tries) named = names_stopped_rank(stopped);
    INFO("rank " << stopped);
    CHECK(named);
  }
}

TEST_CASE("ranks suspended with their launcher for longer than the timeout continue afterwards") {
  bool continued = false;
  for (int tries = 0; tries < kTries && !continued; ++tries) continued = continues_after_suspension();
  CHECK(continued);
}

TEST_CASE("ranks without a shell that could continue them are not suspended") {
  Run run(2, "300", {"/usr/bin/setsid"});  // setsid forks only if it is a group leader
  const std::vector<pid_t> processes = processes_with(run.folder / "run");
  REQUIRE(processes.size() == 3);
  REQUIRE(::kill(run.program.id(), SIGTSTP) == 0);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  CHECK(becomes([&] { return none_stopped(processes); }));
  REQUIRE(::kill(run.program.id(), SIGINT) == 0);
  const Outcome outcome = run.program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 130);
}
