// The timeline of replicas in one process.
#include <algorithm>
#include <set>

#include "observe/timeline.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr double kRounding = 0.002;  // microseconds

// Runs `steps` training steps and traces `count` of them, starting with step `first`.
Timeline trace(DataParallelOptions options, int steps, std::int64_t first, std::int64_t count) {
  const TemporaryFolder temp;
  const Model model = small_convnet();
  options.trace_first = first;
  options.trace_steps = count;
  DataParallel net(model, options);
  for (int step = 0; step < steps; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f, .momentum = 0.9f});
  net.evaluate(random_batch(model, 8));
  net.write_trace(temp / "trace.json");
  return read_timeline(read_text(temp / "trace.json"));
}

DataParallelOptions replicas(int count, Reduce reduce) {
  DataParallelOptions options = on_cpus(count);
  options.reduce = reduce;
  options.bucket_bytes = 1000;
  return options;
}

std::vector<std::int64_t> sizes_of_buckets() {
  DataParallel net(small_convnet(), replicas(2, Reduce::all_reduce));
  return bucket_elements(net.describe_plan(8));
}

}  // namespace

TEST_CASE("a timeline has every phase and bucket of every traced step once on every replica") {
  const auto reduce = GENERATE(Reduce::master, Reduce::all_reduce, Reduce::sharded);
  const std::size_t buckets = sizes_of_buckets().size();
  REQUIRE(buckets > 2);
  for (const int count : {2, 3}) {
    const Timeline timeline = trace(replicas(count, reduce), 6, 2, 3);
    CHECK(timeline.steps == 3);
    CHECK(timeline.dropped == 0);
    CHECK(timeline.processes.size() == static_cast<std::size_t>(count));
    for (int replica = 0; replica < count; ++replica) {
      CHECK(timeline.processes.at(replica) == "replica " + std::to_string(replica) + " (cpu)");
      CHECK(timeline.threads.at({replica, 0}) == "steps and phases");
      CHECK(timeline.threads.at({replica, 1}) == "compute");
      CHECK(timeline.threads.at({replica, 2}) == "communication");
      for (const char* phase : {"step", "scatter", "forward", "loss", "backward", "update"}) {
        std::multiset<std::int64_t> steps;
        for (const Span& span : timeline.phases(replica, phase)) steps.insert(span.step);
        INFO(phase);
        CHECK(steps == std::multiset<std::int64_t>{2, 3, 4});
      }
      for (const Span& span : timeline.phases(replica, "step")) CHECK(span.name == "step " + std::to_string(span.step));
      std::multiset<std::pair<std::int64_t, std::int64_t>> reduced, all;
      for (const Span& span : timeline.of(replica, "reduce")) reduced.insert({span.step, span.bucket});
      for (std::int64_t step : {2, 3, 4})
        for (std::size_t bucket = 0; bucket < buckets; ++bucket) all.insert({step, static_cast<std::int64_t>(bucket)});
      CHECK(reduced == all);
    }
  }
}

TEST_CASE("spans of a thread are nested or disjoint, and those of a step lie inside it") {
  const Timeline timeline = trace(replicas(2, Reduce::sharded), 4, 1, 3);
  for (const auto& [thread, name] : timeline.threads) {
    std::vector<Span> spans;
    for (const Span& span : timeline.spans)
      if (std::pair(span.process, span.thread) == thread) spans.push_back(span);
    CHECK(!spans.empty());
    for (const Span& a : spans)
      for (const Span& b : spans) {
        const bool apart = a.end <= b.begin + kRounding || b.end <= a.begin + kRounding;
        const bool nested = (a.begin <= b.begin + kRounding && b.end <= a.end + kRounding) ||
                            (b.begin <= a.begin + kRounding && a.end <= b.end + kRounding);
        if (!apart && !nested) FAIL(name << ": " << a.name << " and " << b.name);
      }
  }
  for (const Span& span : timeline.spans) {
    const auto steps = timeline.phases(span.process, "step");
    const auto own = std::find_if(steps.begin(), steps.end(), [&](const Span& step) { return step.step == span.step; });
    REQUIRE(own != steps.end());
    CHECK(own->begin <= span.begin + kRounding);
    CHECK(span.end <= own->end + kRounding);
  }
}

TEST_CASE("work of the compute stream has its layer's name") {
  const Timeline timeline = trace(replicas(2, Reduce::sharded), 3, 1, 1);
  std::set<std::string> names;
  for (const Span& span : timeline.of(1, "backward"))
    if (span.thread == 1) names.insert(span.name);
  CHECK(names.contains("conv1+relu backward_weights"));
  CHECK(names.contains("fc2 backward_data"));
}

TEST_CASE("an all_reduce transfers the theoretical 2 (N-1)/N of the bucket's bytes") {
  const std::vector<std::int64_t> elements = sizes_of_buckets();
  const auto [count, type] = GENERATE(std::pair(2, DType::f32), std::pair(3, DType::f32), std::pair(3, DType::bf16));
  DataParallelOptions options = replicas(count, Reduce::all_reduce);
  options.reduce_dtype = type;
  const Timeline timeline = trace(options, 3, 1, 2);
  for (std::size_t bucket = 0; bucket < elements.size(); ++bucket)
    for (const std::int64_t step : {1, 2}) {
      std::int64_t sum = 0;
      for (int replica = 0; replica < count; ++replica)
        for (const Span& span : timeline.of(replica, "reduce"))
          if (span.step == step && span.bucket == static_cast<std::int64_t>(bucket)) sum += span.bytes;
      CHECK(sum == 2 * (count - 1) * elements[bucket] * static_cast<std::int64_t>(size_of(type)));
    }
}

TEST_CASE("only the requested training steps are traced") {
  const Timeline none = trace(replicas(2, Reduce::sharded), 2, 10, 10);
  CHECK(none.steps == 0);
  CHECK(none.spans.empty());
  const Timeline rest = trace(replicas(1, Reduce::master), 3, 1, 1000000);
  CHECK(rest.steps == 2);
  for (const Span& span : rest.spans) CHECK((span.step == 1 || span.step == 2));
}

TEST_CASE("a timeline that was not requested cannot be written") {
  DataParallel net(small_convnet(), on_cpus(1));
  CHECK_THROWS_AS(net.write_trace("/tmp/never"), Error);
}
