// A stalled replica on simulated GPUs.
#include "cuda/engine/failing_steps.h"
#include "support/held_stall.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("simulated GPUs: a replica without progress within the timeout is named, without leaks") {
  SimulatedGpus machine(2);
  const HeldStall stall("backward:dev1:step1");
  DataParallelOptions options = on_gpus(2, 2);
  options.timeout_seconds = 5;
  ErrorCode code{};
  CHECK_THAT(failure_of(options, code), Catch::Contains("replica 1 (cuda:1) made no progress for 5 s"));
  CHECK(code == ErrorCode::timeout);
  check_nothing_left();
}
