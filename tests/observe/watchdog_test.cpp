// A call without progress ends with an error that reports each replica's last action.
#include "engine/observe/watchdog.h"

#include <memory>

#include "engine/observe/progress.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/fake_time.h"
#include "support/held_stall.h"
#include "support/patience.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

DataParallelOptions watched(int replicas, double seconds) {
  DataParallelOptions options = on_cpus(replicas);
  options.timeout_seconds = seconds;
  return options;
}

void train(DataParallel& net, int steps) {
  for (int step = 0; step < steps; ++step)
    net.train_step(random_batch(net.model(), 8), Sgd{.lr = 0.01f, .momentum = 0.9f});
}

// Two simulated replicas for the watchdog.
struct Scene {
  kernels::AbortFlag abort{false};
  std::atomic<std::uint64_t> progress_count{0};
  std::atomic<bool> waits{false};
  engine::WatchdogOptions options(double seconds, bool others) {
    engine::WatchdogOptions o;
    o.seconds = seconds;
    o.abort = &abort;
    o.others = others;
    o.replicas = 2;
    o.progress_count = [this](int) { return progress_count.load(); };
    o.waits = [this](int) { return waits.load(); };
    o.name = [](int replica) { return replica == 0 ? std::string("it") : std::string("she"); };
    o.last = [](int replica) { return replica == 0 ? std::string("nothing") : std::string("vain"); };
    return o;
  }
};

void check_stall(int replicas) {
  const int last = replicas - 1;
  const HeldStall stall("backward:dev" + std::to_string(last) + ":step1");
  DataParallel net(small_convnet(), watched(replicas, 2));
  std::string text;
  ErrorCode code{};
  try {
    train(net, 3);
  } catch (const Error& error) {
    text = error.what();
    code = error.code();
  }
  CHECK(code == ErrorCode::timeout);
  const std::string name = "replica " + std::to_string(last) + " (cpu)";
  CHECK_THAT(text, Catch::StartsWith(name + " made no progress for 2 s: "));
  CHECK_THAT(text, Catch::Contains(name + " is stalled in backward of step 1, last layer 'loss'"));
  if (replicas == 2)
    CHECK_THAT(text,
               Catch::Contains("replica 0 (cpu) is waiting in reduce of bucket 0 of step 1, last layer 'conv1+relu"));
  CHECK_THROWS_WITH(train(net, 1), text);
}

}  // namespace

TEST_CASE("progress: every event of a replica except a micro-batch is counted") {
  engine::Progress progress;
  const std::string layer = "fc";
  CHECK((progress.count() == 0 && progress.phase() == engine::Phase::scatter && progress.layer() == nullptr));
  CHECK((progress.bucket() == -1 && progress.item() == -1));
  progress.enter(engine::Phase::update);
  CHECK((progress.count() == 1 && progress.phase() == engine::Phase::update));
  progress.reach_layer(layer, 8);
  CHECK((progress.count() == 2 && progress.layer() == &layer));
  progress.reach_bucket(3, 8);
  CHECK((progress.count() == 3 && progress.bucket() == 3));
  progress.reach_item(4);
  CHECK((progress.count() == 3 && progress.item() == 4));
  progress.advance();
  CHECK(progress.count() == 4);
}

TEST_CASE("a stalled single replica is named with its last operation") { check_stall(1); }

TEST_CASE("a stalled replica of two is named with the last operation of both") { check_stall(2); }

TEST_CASE("a replica that stalls in any other phase of a step is named with the phase") {
  for (const std::string phase : {"scatter", "forward", "reduce", "update"}) {
    const HeldStall stall(phase + ":dev1:step1");
    DataParallel net(small_convnet(), watched(2, 2));
    CHECK_THROWS_WITH(train(net, 3), Catch::Contains("replica 1 (cpu) made no progress for 2 s: ") &&
                                         Catch::Contains("replica 1 (cpu) is stalled in " + phase + " of "));
  }
}

// Time passes only in the stalls. Both replicas may stall at once, for 2 s of the timeout's 3 s.
TEST_CASE("a slow replica is not a stalled one") {
  TimeOfWaits time;
  FailEnvironment fail("stall:forward:dev1:1000ms,stall:reduce:dev0:1000ms,stall:update:1000ms");
  DataParallelOptions options = watched(2, 3);
  options.bucket_bytes = 3000;
  DataParallel net(small_convnet(), options);
  CHECK_NOTHROW(train(net, 1));
}

TEST_CASE("nothing is watched between calls, and a watchdog leaves no thread") {
  TimeOfWaits time;
  const std::ptrdiff_t before = thread_count();
  {
    DataParallel net(small_convnet(), watched(1, 1));
    train(net, 1);
    CHECK(thread_count() == before + 1);
    time.pass(10);
    CHECK_NOTHROW(train(net, 1));
  }
  CHECK(becomes([&] { return thread_count() == before; }));  // a joined thread may be listed a little longer
  DataParallel net(small_convnet(), watched(1, 0));
  CHECK(thread_count() == before);
}

// The watchdog looks 16 times per timeout. Its first look finds that the call has begun.
TEST_CASE("a rank that waits for others gives them time to report first") {
  TimeOfWaits time;
  Scene scene;
  scene.waits = true;
  engine::Watchdog watchdog(scene.options(8, true));
  watchdog.begin();
  time.pass(9);  // past the 8 s timeout, but within the extra quarter for other ranks
  CHECK(!scene.abort);
  scene.abort = true;  // another rank ended the call
  watchdog.end();
  time.pass(20);
  CHECK(!watchdog.verdict());
}

TEST_CASE("a rank that waits in vain ends its own call") {
  TimeOfWaits time;
  Scene scene;
  scene.waits = true;
  engine::Watchdog watchdog(scene.options(4, true));
  watchdog.begin();
  time.pass(5.2);  // a look, the timeout, and less than the quarter for others
  CHECK(!scene.abort);
  time.pass(0.1);
  CHECK(scene.abort);
  watchdog.end();
  REQUIRE(watchdog.verdict());
  CHECK(std::string(watchdog.verdict()->what()) ==
        "no replica made progress for 4 s: it is waiting in nothing; she is waiting in vain");
}

TEST_CASE("if all ranks wait, those that do not answer are blamed") {
  TimeOfWaits time;
  Scene scene;
  scene.waits = true;
  engine::WatchdogOptions options = scene.options(4, true);
  options.silent = [] { return std::string("rank 3"); };
  engine::Watchdog watchdog(options);
  watchdog.begin();
  time.pass(5.3);
  watchdog.end();
  REQUIRE(watchdog.verdict());
  CHECK(std::string(watchdog.verdict()->what()) ==
        "rank 3 did not answer (is its process stopped?): no replica made progress for 4 s: it is waiting in nothing; "
        "she is waiting in vain");
}

TEST_CASE("progress during the query of other ranks, or the end of the call, prevents the verdict") {
  for (const bool ends : {true, false}) {
    TimeOfWaits time;
    Scene scene;
    scene.waits = true;
    std::atomic<int> queries{0};
    engine::WatchdogOptions options = scene.options(4, true);
    {
      std::unique_ptr<engine::Watchdog> watchdog;
      options.silent = [&] {
        if (ends)
          watchdog->end();
        else
          ++scene.progress_count;
        ++queries;
        return std::string("rank 3");
      };
      watchdog = std::make_unique<engine::Watchdog>(options);
      watchdog->begin();
      time.pass(20);
      CHECK(queries == (ends ? 1 : 3));  // a timeout and its quarter after the start and after each progress
    }
    CHECK(!scene.abort);
  }
}

TEST_CASE("progress restarts the timeout") {
  TimeOfWaits time;
  Scene scene;
  engine::Watchdog watchdog(scene.options(2, false));
  watchdog.begin();
  for (int i = 0; i < 12; ++i) {
    time.pass(1.8);
    ++scene.progress_count;
  }
  CHECK(!scene.abort);
  time.pass(2.2);
  CHECK(scene.abort);
  watchdog.end();
}

TEST_CASE("the limit after a request to stop is 15 s, or that of the options") {
  for (const double limit : {15, 150}) {
    TimeOfWaits time;
    Scene scene;
    std::atomic<int> stop{15};
    engine::WatchdogOptions options = scene.options(0, false);
    options.stop = &stop;
    if (limit > 15) options.after_stop = limit;
    engine::Watchdog watchdog(options);
    watchdog.begin();
    time.pass(0.9 * limit);
    CHECK(!scene.abort);
    time.pass(0.2 * limit);
    CHECK(scene.abort);
    watchdog.end();
  }
}

TEST_CASE("time without progress that does not count is no stall") {
  TimeOfWaits time;
  Scene scene;
  std::atomic<bool> counts{false};
  engine::WatchdogOptions options = scene.options(2, false);
  options.counts = [&] { return counts.load(); };
  engine::Watchdog watchdog(options);
  watchdog.begin();
  time.pass(20);
  CHECK(!scene.abort);
  counts = true;
  time.pass(2.2);
  CHECK(scene.abort);
  watchdog.end();
}

TEST_CASE("after a request to stop, a call without progress ends in time, also without a timeout") {
  std::atomic<int> stop{0};
  HeldStall stall("backward:dev0:step1");
  DataParallelOptions options = watched(1, 0);
  options.stop = &stop;
  DataParallel net(small_convnet(), options);
  train(net, 1);
  stop = 15;
  CHECK_THROWS_WITH(
      train(net, 1),
      // 15 s without HeldStall, which sets DP_FAIL_GATE
      Catch::StartsWith("replica 0 (cpu) made no progress for 150 s after the request to stop: replica 0 (cpu) is "
                        "stalled in backward of step 1, last layer 'loss'"));
}
