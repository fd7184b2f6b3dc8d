// Offsets and buckets of a small table of parameters, and the placement of buffers, number by number.
#include "engine/layers/parameters.h"

#include "engine/layers/planner.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;

namespace {

// Parameters of 100, 10, 40 and 4 elements.
ParameterTable table_of(std::int64_t granularity, bool vectors_first, DType type = DType::f32) {
  ModelBuilder m("two_layers", Shape{10});
  const auto x = m.linear("fc1", m.input(), {.out_features = 10});
  const Model model = m.build(m.linear("fc2", x, {.out_features = 4}));
  std::vector<kernels::Layout> layouts;
  for (const ParameterSpec& spec : model.parameters())
    layouts.push_back({spec.name, static_cast<std::size_t>(spec.shape.numel()) * size_of(type), nullptr});
  return {model, layouts, type, granularity, vectors_first};
}

std::vector<std::int64_t> offsets(const ParameterTable& table) {
  std::vector<std::int64_t> all;
  for (const ParameterEntry& entry : table.entries()) all.push_back(entry.offset);
  return all;
}

using Buckets = std::vector<std::vector<std::int64_t>>;  // begin, end, first entry

Buckets numbers(const std::vector<Bucket>& buckets) {
  Buckets all;
  for (const Bucket& bucket : buckets) all.push_back({bucket.range.begin, bucket.range.end, bucket.first_entry});
  return all;
}

using Numbers = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("parameters: offsets, counts and sizes of a small table") {
  const ParameterTable table = table_of(1, false);
  CHECK(offsets(table) == Numbers{0, 112, 128, 176});
  CHECK(table.size() == 192);
  CHECK(table.bytes() == 768);
  CHECK(table.vectors() == 0);
  CHECK(table.type() == DType::f32);
  Numbers counts;
  std::vector<std::string> names;
  for (const ParameterEntry& entry : table.entries()) {
    counts.push_back(entry.count);
    names.push_back(entry.name);
    CHECK(entry.layout.name == entry.name);
  }
  CHECK(counts == Numbers{100, 10, 40, 4});
  CHECK(names == std::vector<std::string>{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"});
  CHECK(table.entry(2).shape == Shape{4, 10});
  const ParameterTable wide = table_of(1, false, DType::f64);
  CHECK(offsets(wide) == Numbers{0, 112, 128, 176});
  CHECK(wide.bytes() == 1536);
  CHECK(table_of(100, false).size() == 200);
  const ParameterTable vectors = table_of(1, true), padded = table_of(64, true);
  CHECK(offsets(vectors) == Numbers{32, 0, 144, 16});
  CHECK(vectors.vectors() == 32);
  CHECK(vectors.size() == 192);
  CHECK(offsets(padded) == Numbers{64, 0, 176, 16});
  CHECK(padded.vectors() == 64);
  CHECK(padded.size() == 256);
}

TEST_CASE("parameters: a bucket ends as soon as it has its size") {
  const ParameterTable table = table_of(1, false);
  CHECK(numbers(table.buckets(1)) == Buckets{{176, 192, 3}, {128, 176, 2}, {112, 128, 1}, {0, 112, 0}});
  CHECK(numbers(table.buckets(256)) == Buckets{{128, 192, 2}, {0, 128, 0}});
  CHECK(numbers(table.buckets(257)) == Buckets{{112, 192, 1}, {0, 112, 0}});
  CHECK(numbers(table.buckets(1 << 20)) == Buckets{{0, 192, 0}});
  CHECK(numbers(table.buckets(1 << 20, 0, {2})) == Buckets{{128, 192, 2}, {0, 128, 0}});
  CHECK(numbers(table.buckets(1 << 20, 0, {3, 1})) == Buckets{{176, 192, 3}, {112, 176, 1}, {0, 112, 0}});
  CHECK(numbers(table_of(1, false, DType::f64).buckets(512)) == Buckets{{128, 192, 2}, {0, 128, 0}});
}

TEST_CASE("parameters: the last bucket has at most its size, or one parameter") {
  const ParameterTable table = table_of(1, false);
  CHECK(numbers(table.buckets(1 << 20, 512)) == Buckets{{128, 192, 2}, {0, 128, 0}});
  CHECK(numbers(table.buckets(1 << 20, 511)) == Buckets{{112, 192, 1}, {0, 112, 0}});
  CHECK(numbers(table.buckets(1 << 20, 1)) == Buckets{{112, 192, 1}, {0, 112, 0}});
  CHECK(numbers(table_of(1, true).buckets(1 << 20, 448)) == Buckets{{144, 192, 2}, {32, 144, 0}, {0, 32, 0}});
}

TEST_CASE("parameters: buckets begin at multiples of the granularity, and after the vectors") {
  CHECK(numbers(table_of(64, false).buckets(1)) == Buckets{{128, 192, 2}, {0, 128, 0}});
  CHECK(numbers(table_of(100, false).buckets(1)) == Buckets{{0, 200, 0}});
  CHECK(numbers(table_of(1, true).buckets(1)) == Buckets{{144, 192, 2}, {32, 144, 0}, {0, 32, 0}});
  CHECK(numbers(table_of(1, true).buckets(1 << 20)) == Buckets{{32, 192, 0}, {0, 32, 0}});
  CHECK(numbers(table_of(64, true).buckets(1)) == Buckets{{192, 256, 2}, {64, 192, 0}, {0, 64, 0}});
}

TEST_CASE("parameters: networks of up to 6 MiB get one bucket, others buckets of 4 MiB") {
  constexpr std::size_t kMiB = 1 << 20;
  CHECK(default_bucket_bytes(0) == 6 * kMiB);
  CHECK(default_bucket_bytes(6 * kMiB) == 6 * kMiB);
  CHECK(default_bucket_bytes(6 * kMiB + 1) == 4 * kMiB);
}

TEST_CASE("placement: the largest buffer comes first, and each takes the lowest gap that fits") {
  struct Case {
    std::vector<Lifetime> buffers;  // bytes, first step, last step
    std::vector<std::size_t> offsets;
    std::size_t total = 0;
  };
  const std::vector<Case> cases{
      {{}, {}, 0},
      {{{1, 0, 0}, {65, 0, 0}, {1, 0, 0}}, {128, 0, 192}, 256},
      {{{64, 0, 1}, {192, 0, 1}, {128, 0, 1}}, {320, 0, 192}, 384},
      {{{256, 0, 9}, {192, 0, 3}, {192, 0, 9}, {192, 4, 9}}, {0, 256, 448, 256}, 640},  // the gap fits exactly
      {{{256, 0, 3}, {192, 0, 9}, {64, 3, 9}, {64, 4, 9}}, {0, 256, 448, 0}, 512}};
  for (const Case& one : cases) {
    std::vector<Lifetime> buffers = one.buffers;
    CHECK(place(buffers) == one.total);
    std::vector<std::size_t> offsets;
    for (const Lifetime& buffer : buffers) offsets.push_back(buffer.offset);
    CHECK(offsets == one.offsets);
  }
}
