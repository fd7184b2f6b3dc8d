// A stalled replica on simulated GPUs.
#include <cstdlib>

#include "cuda/engine/failing_steps.h"

using namespace dp;
using namespace dp::test;

// The watchdog reports the stall after 20 to 21.25 s and ends the process at most 10 s later. The stall ends between
// the two, with 4 s of margin for a busy machine.
TEST_CASE("simulated GPUs: a replica without progress within the timeout is named, without leaks") {
  SimulatedGpus machine(2);
  DataParallelOptions options = on_gpus(2, 2);
  options.timeout_seconds = 20;
  setenv("DP_FAIL", "stall:backward:dev1:step1:25500ms", 1);
  ErrorCode code{};
  CHECK_THAT(failure_of(options, code), Catch::Contains("replica 1 (cuda:1) made no progress for 20 s"));
  unsetenv("DP_FAIL");
  CHECK(code == ErrorCode::timeout);
  check_nothing_left();
}
