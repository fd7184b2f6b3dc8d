// The last operations of a replica's thread.
#include "engine/observe/progress.h"

#include <cstdio>
#include <string>
#include <vector>

#include "support/catch.h"

using namespace dp;
using engine::Begun;
using engine::Phase;
using engine::Progress;

TEST_CASE("progress: the last 64 operations and transfers are kept") {
  Progress progress;
  CHECK(progress.begun() == 0);
  const std::string layer = "conv1";
  progress.begin_step(7);
  progress.enter(Phase::forward);
  progress.reach_layer(layer, 100);
  progress.enter(Phase::reduce);
  progress.reach_bucket(3, 200);
  progress.reach_transfer("send", 300);
  REQUIRE(progress.begun() == 3);
  const Begun send = progress.begun(2), bucket = progress.begun(1), conv = progress.begun(0);
  CHECK(std::string(send.name) == "send");
  CHECK((send.bytes == 300 && send.bucket == -1 && send.step == 7));
  CHECK((std::string(bucket.name) == "reduce" && bucket.bytes == 200 && bucket.bucket == 3));
  CHECK((conv.name == layer.c_str() && conv.bytes == 100 && conv.phase == Phase::forward && conv.step == 7));
  CHECK((conv.at > 0 && conv.at <= bucket.at && bucket.at <= send.at));
  for (int i = 0; i < 100; ++i) progress.reach_layer(layer, i);
  REQUIRE(progress.begun() == 103);
  CHECK(progress.begun(102).bytes == 99);
  CHECK(progress.begun(103 - Progress::kRecent).bytes == 36);
}

// docs/reference/failures.md has the figure.
TEST_CASE("progress: the time of one entry", "[.measured]") {
  Progress progress;
  const std::string layer = "conv1";
  constexpr int kEntries = 10'000'000;
  const std::int64_t begin = kernels::trace_clock();
  for (int i = 0; i < kEntries; ++i) progress.reach_layer(layer, i);
  const std::int64_t nanoseconds = kernels::trace_clock() - begin;
  std::printf("%.1f ns per operation\n", static_cast<double>(nanoseconds) / kEntries);
  CHECK(progress.count() == kEntries);
}
