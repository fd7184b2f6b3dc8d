// The spans that the communicator "host" adds to a trace: one per call, with the bytes that the rank transferred.
#include <algorithm>
#include <numeric>

#include "host/rank_group.h"
#include "kernels/device/trace_ring.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kCount = 5000;

struct Expected {
  const char* what;
  std::int64_t bytes;
};

std::vector<Expected> expected_of(int rank, int root, const std::vector<std::size_t>& parts) {
  const std::int64_t mine = slice_of(kCount, rank, kRanks).size(), others = kRanks - 1;
  const bool leads = rank == root;
  const auto part = static_cast<std::int64_t>(parts[static_cast<std::size_t>(rank)]);
  return {{"broadcast", leads ? 0 : 4 * kCount},
          {"empty broadcast", 0},
          {"reduce", 4 * mine * (others + (leads ? 0 : 1))},  // reads the other ranks' slices, writes the root's
          {"all_reduce", 4 * mine * (others + others)},
          {"all_reduce of float64", 8 * mine * (others + others)},
          {"all_reduce of bfloat16", 2 * mine * (others + others)},
          {"reduce_scatter", 4 * mine * others},
          {"all_gather", 4 * (kCount - mine)},
          {"all_gather_parts", 100 * others},
          {"gather", leads ? 0 : part},
          {"scatter", leads ? 0 : part},
          {"all_reduce of two summands", 4 * mine * (2 * others + others)}};
}

}  // namespace

TEST_CASE("a trace has one span for each collective with the bytes that this rank transferred") {
  const int root = 1;
  const std::vector<std::size_t> parts{10, 20, 30};
  std::vector<std::vector<double>> data(kRanks, std::vector<double>(2 * kCount));  // outlives the ranks' threads
  std::vector<TraceRing> rings(kRanks, TraceRing(100));
  RankGroup group(kRanks);
  auto handles = group.communicators();
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    Communicator& comm = *handles[me];
    const auto stream = group.contexts[me]->make_stream();
    TraceRing& ring = rings[me];
    ring.recording = true;
    ring.step = 7;
    stream->trace(&ring);
    comm.trace(&ring);
    std::uint64_t calls = 0;
    const auto next = [&] {
      stream->label(calls % kLabels);
      stream->detail(100 + calls++);
      return data[me].data();
    };
    comm.broadcast(next(), kCount, DType::f32, root, *stream);
    comm.broadcast(next(), 0, DType::f32, root, *stream);
    comm.reduce(next(), kCount, DType::f32, root, *stream);
    comm.all_reduce(next(), kCount, DType::f32, *stream);
    comm.all_reduce(next(), kCount, DType::f64, *stream);
    comm.all_reduce(next(), kCount, DType::bf16, *stream);
    comm.reduce_scatter(next(), kCount, DType::f32, *stream);
    comm.all_gather(next(), kCount, DType::f32, *stream);
    comm.all_gather_parts(next(), 100, *stream);
    comm.gather(next() + 1000, data[me].data(), parts, root, *stream);
    comm.scatter(next(), data[me].data() + 1000, parts, root, *stream);
    stream->synchronize();
    comm.set_summands(2, kCount);
    comm.all_reduce(next(), kCount, DType::f32, *stream);
    stream->synchronize();
    stream->trace(nullptr);
    comm.trace(nullptr);
    comm.all_reduce(next(), kCount, DType::f32, *stream);  // not traced
    stream->synchronize();
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const TraceRing& ring = rings[static_cast<std::size_t>(rank)];
    const std::vector<Expected> expected = expected_of(rank, root, parts);
    REQUIRE(ring.size() == expected.size());
    CHECK(ring.dropped() == 0);
    std::int64_t time = 1;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO("rank " << rank << ": " << expected[i].what);
      const TraceSpan& span = ring.span(i);
      CHECK(span.bytes == expected[i].bytes);
      CHECK(span.label == i % kLabels);
      CHECK(span.detail == 100 + i);
      CHECK(span.step == 7);
      CHECK(span.begin >= time);
      CHECK(span.end >= span.begin);
      time = span.begin;
    }
  }
}

TEST_CASE("a trace has no span for a wait, and a queued call begins with its first attempt") {
  BareContext context;
  const auto first = context.make_stream(), second = context.make_stream();
  const auto event = context.make_event();
  TraceRing ring(10);
  ring.recording = true;
  second->trace(&ring);
  std::atomic<bool> open{false};
  wait_for(*first, open);
  first->record(*event);
  second->wait(*event);
  second->label(3);
  second->detail(5);
  const std::int64_t before = trace_clock();
  LambdaOp work([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  work.run(*second, {}, nullptr);  // queued behind the wait
  CHECK(ring.size() == 0);
  open = true;
  second->synchronize();
  REQUIRE(ring.size() == 1);
  const TraceSpan& span = ring.span(0);
  CHECK(span.begin >= before);
  CHECK(span.end - span.begin >= 20'000'000);
  CHECK(span.end <= trace_clock());
  CHECK(span.label == 3);
  CHECK(span.detail == 5);
  CHECK(span.bytes == 0);
}
