// A rank that waits for others can be interrupted.
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "dp/error.h"
#include "process_group/group_ranks.h"
#include "support/fake_time.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("process group: a rank that waits for the answer of rank 0 notices an interrupt within a second") {
  TimeOfWaits time;
  GroupAddress address;  // the connection is accepted, but rank 0 does not answer
  std::atomic<int> stop{0};
  std::atomic<bool> ended{false};
  ProcessGroupOptions options = address.options(1, 2);
  options.stop = &stop;
  std::string why;
  std::thread rank([&] {
    try {
      ProcessGroup::join(options);
    } catch (const Error& error) {
      why = error.what();
    }
    ended = true;
  });
  const auto over = [&] { return ended.load(); };
  time.pass(1, over);  // it waits
  stop = SIGTERM;
  time.pass(1, over);
  const bool noticed = ended;
  if (!noticed) time.pass(60, over);  // then the missing answer ends it
  rank.join();
  CHECK(noticed);
  CHECK(why == "rank 1 of 2 could not join: interrupted while ranks were missing");
}

TEST_CASE("process group: a rank that cannot reach rank 0 notices an interrupt long before the timeout") {
  GroupAddress address;
  address.listener.close();  // the connection is refused
  std::atomic<int> stop{0};
  ProcessGroupOptions options = address.options(1, 2);
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
