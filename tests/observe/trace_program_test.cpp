// --trace, for both engines.
#include <algorithm>

#include "apps/run_program.h"
#include "observe/timeline.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

std::vector<std::string> run_of(std::vector<std::string> more) {
  const std::vector<std::string> common{
      "--dataset",   "synthetic", "--model",      "mnist_convnet", "--cpu",
      "2",           "-b",        "16",           "--max-steps",   "5",
      "--bucket-mb", "1",         "--output-dir", "run",           "--threads-per-replica",
      "1",           "--quiet",   "--trace",      "trace.json",    "--trace-steps",
      "2:2"};
  more.insert(more.begin(), common.begin(), common.end());
  return more;
}

}  // namespace

TEST_CASE("trace: --trace shows every replica or rank, every bucket, and reductions that overlap with backward") {
  const auto engine = GENERATE(std::vector<std::string>{"--engine", "dp"}, std::vector<std::string>{"--engine", "ddp"});
  const TemporaryFolder temp;
  const Outcome outcome = run_dp_train(run_of(engine), temp.path());
  INFO(engine.back() << ": " << outcome.err);
  REQUIRE(outcome.code == 0);
  const Timeline timeline = read_timeline(read_text(temp / "trace.json"));
  const bool ddp = engine[1] == "ddp";
  CHECK(timeline.steps == 2);
  REQUIRE(timeline.processes.size() == 2);
  CHECK(timeline.processes.at(1) == (ddp ? "rank 1 (cpu)" : "replica 1 (cpu)"));
  std::int64_t bytes = 0;
  for (int process : {0, 1}) {
    const auto sums = timeline.of(process, "reduce");
    CHECK(sums.size() == 4);  // two steps with two buckets each
    for (const std::int64_t step : {2, 3}) {
      const auto backward = timeline.phases(process, "backward");
      const auto own = std::find_if(backward.begin(), backward.end(), [&](const Span& s) { return s.step == step; });
      REQUIRE(own != backward.end());
      for (const Span& sum : sums)
        if (sum.step == step && sum.bucket == 0) CHECK(sum.begin < own->end);  // enqueued during backward
    }
    for (const Span& sum : sums)
      if (sum.step == 2) bytes += sum.bytes;
  }
  // Bytes over all N ranks, relative to the parameters: an all-reduce sends 2 (N-1)/N per rank, a reduce-scatter half
  // of that.
  std::int64_t elements = 0;
  for (const std::int64_t bucket : bucket_elements(run_dp_train(run_of({"--print-plan"}), temp.path()).out))
    elements += bucket;
  CHECK(elements > 1199882);
  CHECK(bytes == (ddp ? 2 : 1) * elements * 4);
  // The processes share one clock: the ranks' steps overlap in time.
  const auto first = timeline.phases(0, "step"), second = timeline.phases(1, "step");
  REQUIRE(first.size() == 2);
  REQUIRE(second.size() == 2);
  CHECK(first[0].begin < second[0].end);
  CHECK(second[0].begin < first[0].end);
}

TEST_CASE("trace: a range of steps after the run's end is reported, and an invalid range is rejected") {
  const TemporaryFolder temp;
  std::vector<std::string> late = run_of({});
  late.back() = "100:2";
  late.erase(std::find(late.begin(), late.end(), "--quiet"));
  const Outcome outcome = run_dp_train(late, temp.path());
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out + outcome.err,
             Catch::Contains("'trace.json' contains no step: the run ended before step 100"));
  CHECK(read_timeline(read_text(temp / "trace.json")).spans.empty());
  for (const char* bad : {"", "3", "3:", ":3", "3:0", "-1:2", "3:4x", "x:4"}) {
    std::vector<std::string> wrong = run_of({});
    wrong.back() = bad;
    INFO(bad);
    CHECK(run_dp_train(wrong, temp.path()).code == 2);
  }
  CHECK(run_dp_train(run_of({"--evaluate", "--init", "x"}), temp.path()).code == 2);
}
