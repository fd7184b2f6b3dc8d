// What a tracer records, and the text of a replica's timeline.
#include "engine/observe/tracer.h"

#include <limits>

#include "support/catch.h"

using namespace dp::engine;
using dp::kernels::TraceSpan;

namespace {

std::uint8_t label(Phase phase) { return static_cast<std::uint8_t>(phase); }

// The spans of the thread as "step number: labels".
std::vector<std::pair<std::int64_t, int>> labels(const Tracer& tracer) {
  std::vector<std::pair<std::int64_t, int>> found;
  for (std::size_t i = 0; i < tracer.thread.size(); ++i)
    found.emplace_back(tracer.thread.span(i).step, tracer.thread.span(i).label);
  return found;
}

}  // namespace

TEST_CASE("a tracer records the chosen steps, each with its phases in order") {
  Tracer tracer(1, 2);
  for (const std::int64_t number : {40, 41, 42, 43}) {
    CHECK(tracer.records_next() == (number == 41 || number == 42));
    tracer.begin_step(number);
    for (const auto* ring : {&tracer.thread, &tracer.compute, &tracer.communication}) {
      CHECK(ring->recording == (number == 41 || number == 42));
      CHECK(ring->step == number);
    }
    tracer.enter(Phase::scatter);
    tracer.enter(Phase::loss);
    tracer.end_step();
    for (const auto* ring : {&tracer.thread, &tracer.compute, &tracer.communication}) CHECK_FALSE(ring->recording);
    tracer.enter(Phase::update);  // between steps nothing is recorded
  }
  using Labels = std::vector<std::pair<std::int64_t, int>>;
  const int scatter = label(Phase::scatter), loss = label(Phase::loss), step = Tracer::kStep;
  CHECK(labels(tracer) == Labels{{41, scatter}, {41, loss}, {41, step}, {42, scatter}, {42, loss}, {42, step}});
  const auto& thread = tracer.thread;
  for (const std::size_t first : {0u, 3u}) {
    const TraceSpan &one = thread.span(first), &two = thread.span(first + 1), &all = thread.span(first + 2);
    CHECK(all.begin <= one.begin);
    CHECK(one.begin <= one.end);
    CHECK(one.end == two.begin);
    CHECK(two.begin <= two.end);
    CHECK(two.end == all.end);
    for (const TraceSpan& span : {one, two, all}) {
      CHECK(span.detail == 0);
      CHECK(span.bytes == 0);
      CHECK(span.begin > 0);
    }
  }
  CHECK(thread.span(2).end <= thread.span(5).begin);
  CHECK(tracer.compute.size() == 0);
  CHECK(tracer.communication.size() == 0);
}

TEST_CASE("a step without phases is one span, and a tracer of no steps records none") {
  Tracer tracer(0, 1), none(0, 0);
  tracer.begin_step(7);
  tracer.end_step();
  CHECK(labels(tracer) == std::vector<std::pair<std::int64_t, int>>{{7, Tracer::kStep}});
  CHECK_FALSE(none.records_next());
  none.begin_step(0), none.enter(Phase::forward), none.end_step();
  CHECK(none.thread.size() == 0);
  CHECK(first_moment(none) == std::numeric_limits<std::int64_t>::max());
  CHECK(trace_text(none, 0, "r", 0).steps == 0);
}

TEST_CASE("details of layers, buckets and micro-batches are distinguished") {
  const std::string name = "fc";
  for (const std::size_t number : {0u, 1u, 2u, 3u, 1000u}) {
    CHECK(bucket_of(bucket_detail(number)) == static_cast<std::int64_t>(number));
    CHECK(item_of(bucket_detail(number)) == -1);
    CHECK(layer_of(bucket_detail(number)) == nullptr);
    const std::uint64_t detail = item_detail(static_cast<int>(number));
    CHECK(item_of(detail) == static_cast<int>(number));
    CHECK(bucket_of(detail) == -1);
    CHECK(layer_of(detail) == nullptr);
  }
  CHECK(layer_of(layer_detail(name)) == &name);
  CHECK(bucket_of(layer_detail(name)) == -1);
  CHECK(item_of(layer_detail(name)) == -1);
  CHECK(layer_of(0) == nullptr);
}

TEST_CASE("a timeline names its threads and each span by its step, bucket, layer or phase") {
  Tracer tracer(0, 9);
  const std::string layer = "fc \"1\"";
  // begin, end, detail, bytes, label, step
  tracer.thread.keep({2000, 3500, bucket_detail(0), 0, Tracer::kStep, 4});
  tracer.thread.keep({2000, 2001, 0, 0, label(Phase::scatter), 4});
  tracer.thread.keep({2500, 3000, layer_detail(layer), 0, label(Phase::broadcast), 4});
  tracer.compute.keep({2100, 2200, layer_detail(layer), 0, label(Phase::forward), 4});
  tracer.compute.keep({2200, 2300, bucket_detail(3), 64, label(Phase::update), 4});
  tracer.compute.keep({2300, 2400, item_detail(5), 8, label(Phase::backward), 4});
  tracer.compute.keep({1500, 1600, 0, 0, 7, 5});
  tracer.communication.keep({2400, 2500, bucket_detail(0), 1, label(Phase::reduce), 4});
  tracer.communication.keep({2500, 2600, item_detail(0), 0, label(Phase::forward), 4});
  tracer.communication.keep({2600, 2700, layer_detail(layer), 0, Tracer::kStep, 4});
  tracer.thread.miss(), tracer.compute.miss(), tracer.compute.miss(), tracer.communication.miss();
  const TraceText text = trace_text(tracer, 3, "replica \"3\"", 1000);
  CHECK(text.steps == 1);
  CHECK(text.dropped == 4);
  CHECK(first_moment(tracer) == 1500);
  const std::string expected =
      R"({"ph":"M","name":"process_name","pid":3,"tid":0,"args":{"name":"replica \"3\""}},
{"ph":"M","name":"thread_name","pid":3,"tid":0,"args":{"name":"steps and phases"}},
{"ph":"M","name":"thread_sort_index","pid":3,"tid":0,"args":{"sort_index":0}},
{"ph":"X","name":"step 4","cat":"step","pid":3,"tid":0,"ts":1.000,"dur":1.500,"args":{"step":4}},
{"ph":"X","name":"scatter","cat":"scatter","pid":3,"tid":0,"ts":1.000,"dur":0.001,"args":{"step":4}},
{"ph":"X","name":"broadcast","cat":"broadcast","pid":3,"tid":0,"ts":1.500,"dur":0.500,"args":{"step":4}},
{"ph":"M","name":"thread_name","pid":3,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":3,"tid":1,"args":{"sort_index":1}},
{"ph":"X","name":"fc \"1\"","cat":"forward","pid":3,"tid":1,"ts":1.100,"dur":0.100,"args":{"step":4}},
)"
      R"({"ph":"X","name":"update bucket 3","cat":"update","pid":3,"tid":1,"ts":1.200,"dur":0.100,)"
      R"("args":{"step":4,"bucket":3,"bytes":64}},
)"
      R"({"ph":"X","name":"backward hand-over","cat":"backward","pid":3,"tid":1,"ts":1.300,"dur":0.100,)"
      R"("args":{"step":4,"micro_batch":5,"bytes":8}},
{"ph":"X","name":"upload","cat":"upload","pid":3,"tid":1,"ts":0.500,"dur":0.100,"args":{"step":5}},
{"ph":"M","name":"thread_name","pid":3,"tid":2,"args":{"name":"communication"}},
{"ph":"M","name":"thread_sort_index","pid":3,"tid":2,"args":{"sort_index":2}},
)"
      R"({"ph":"X","name":"reduce bucket 0","cat":"reduce","pid":3,"tid":2,"ts":1.400,"dur":0.100,)"
      R"("args":{"step":4,"bucket":0,"bytes":1}},
{"ph":"X","name":"forward","cat":"forward","pid":3,"tid":2,"ts":1.500,"dur":0.100,"args":{"step":4}},
{"ph":"X","name":"upload","cat":"upload","pid":3,"tid":2,"ts":1.600,"dur":0.100,"args":{"step":4}})";
  CHECK(text.events == expected);
}

TEST_CASE("a timeline with more spans than a ring holds counts the oldest as dropped") {
  Tracer tracer(0, 1);
  const std::size_t kept = 1 << 15;
  for (std::size_t i = 0; i < kept + 3; ++i) tracer.compute.keep({static_cast<std::int64_t>(i) + 10, 0, 0, 0, 0, 0});
  CHECK(tracer.compute.size() == kept);
  CHECK(first_moment(tracer) == 13);
  CHECK(trace_text(tracer, 0, "r", 0).dropped == 3);
}
