// A rank that waits for others can be interrupted.
#include <atomic>
#include <chrono>
#include <csignal>

#include "dp/error.h"
#include "process_group/group_ranks.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("process group: a rank that waits for rank 0 notices an interrupt long before the timeout") {
  GroupAddress address;
  // Without a listener the connection is refused. With a listener it is accepted, but rank 0 does not answer.
  if (const bool listens = GENERATE(true, false); !listens) address.listener = FileHandle();
  std::atomic<int> stop{0};
  ProcessGroupOptions options = address.options(1, 2, 120.0);
  options.stop = &stop;
  const auto begin = std::chrono::steady_clock::now();
  std::thread interrupter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = SIGTERM;
  });
  CHECK_THROWS_WITH(ProcessGroup::join(options), Catch::Contains("rank 1 of 2"));
  interrupter.join();
  CHECK(in_time(begin, 1));
}
