// A stalled replica on simulated GPUs.
#include <cstdlib>

#include "cuda/engine/failing_steps.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;

// The watchdog reports the stall after 5 s and would end the process a minute later. The stall ends between the two,
// with a margin for a busy machine.
TEST_CASE("simulated GPUs: a replica without progress within the timeout is named, without leaks") {
  SimulatedGpus machine(2);
  const PatientWatchdog patient;
  DataParallelOptions options = on_gpus(2, 2);
  options.timeout_seconds = 5;
  setenv("DP_FAIL", "stall:backward:dev1:step1:12000ms", 1);
  ErrorCode code{};
  CHECK_THAT(failure_of(options, code), Catch::Contains("replica 1 (cuda:1) made no progress for 5 s"));
  unsetenv("DP_FAIL");
  CHECK(code == ErrorCode::timeout);
  check_nothing_left();
}
