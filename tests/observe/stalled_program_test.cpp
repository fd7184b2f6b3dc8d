// The whole program: a stalled worker does not keep the process alive.
#include <signal.h>

#include "observe/stalled_program.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp::test;

TEST_CASE("with --timeout 2 a stalled replica ends dp_train within 2 to 4 s with exit code 6") {
  const Stalled stalled = run_stalled({}, 1, "backward");
  INFO(stalled.outcome.err);
  CHECK(stalled.outcome.code == 6);
  CHECK(stalled.whole > 2);
  CHECK(stalled.seconds < kLongestEnd + kPatience.count());
  CHECK_THAT(
      stalled.outcome.err,
      Catch::StartsWith("dp: error: replica 1 (cpu) made no progress for 2 s: replica 0 (cpu) is waiting in reduce of "
                        "bucket 0 of step 2, last layer 'fc1"));
  CHECK_THAT(stalled.outcome.err,
             Catch::Contains("replica 1 (cpu) is stalled in backward of step 2, last layer 'loss'"));
}

TEST_CASE("a stalled rank ends every rank's process, and its message comes first") {
  const int rank = GENERATE(0, 1);
  const std::string number = std::to_string(rank), other = std::to_string(1 - rank);
  const std::string cause = "[rank " + number + "] dp: error: rank " + number +
                            " (cpu) made no progress for 2 s: rank " + number +
                            " (cpu) is stalled in forward of step 2";
  const std::string consequence =
      "[rank " + other + "] dp_train: error: rank " + other + " stops: rank " + number + " failed";
  // A launcher that gets no core may read both messages at once. It gives the other rank three seconds to report.
  const auto complete = [&](const std::string& text) {
    return text.starts_with(cause) && text.find(consequence) != std::string::npos;
  };
  Stalled stalled;
  for (int tries = 0; tries < 5 && !complete(stalled.outcome.err); ++tries)
    stalled = run_stalled({"--engine", "ddp"}, rank, "forward");
  INFO(stalled.outcome.err);
  CHECK(stalled.outcome.code == 6);
  CHECK(stalled.whole > 2);
  CHECK(stalled.seconds < kLongestEnd + kPatience.count());
  CHECK_THAT(stalled.outcome.err, Catch::StartsWith(cause));
  CHECK_THAT(stalled.outcome.err, Catch::Contains(consequence));
  CHECK_THAT(stalled.outcome.err, Catch::Contains("; rank " + other + " was in reduce of bucket 0 of step 2"));
}

TEST_CASE("a program that hangs after SIGTERM names the operation and ends with the signal's exit code") {
  const TemporaryFolder temp;
  Program program({"--dataset", "synthetic", "--model", "mlp", "--cpu", "2", "-b", "16", "-p", "1", "--timeout", "3",
                   "--threads-per-replica", "1"},
                  temp.path(),
                  {"DP_FAIL=stall:backward:dev1:step2:600000ms", StallGate(temp / "gate").variable(),
                   "TSAN_OPTIONS=report_thread_leaks=0"});
  StallGate(temp / "gate").wait_for(1);
  ::kill(program.id(), SIGTERM);
  const Outcome outcome = program.wait();
  CHECK(outcome.code == 128 + SIGTERM);
  CHECK_THAT(outcome.err, Catch::Contains("replica 1 (cpu) made no progress for ") &&
                              Catch::Contains("replica 1 (cpu) is stalled in backward of step 2"));
}

TEST_CASE("watch: --timeout 0 disables the watchdog, and negative times are rejected") {
  const TemporaryFolder temp;
  CHECK(run_dp_train({"--dataset", "synthetic", "--model", "mlp", "--cpu", "1", "--dry-run", "--timeout", "0"},
                     temp.path())
            .code == 0);
  CHECK(run_dp_train({"--dataset", "synthetic", "--dry-run", "--timeout", "-1"}, temp.path()).code == 2);
}
