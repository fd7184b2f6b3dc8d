#include "engine/plan/plan.h"

#include "dp/error.h"
#include "dp/models.h"
#include "engine/layers/nodes.h"
#include "engine/layers/planner.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/step/bucket_tuning.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::engine;

TEST_CASE("fusion: mnist_convnet becomes six nodes, five without dropout") {
  const auto nodes = fuse(models::mnist_convnet(), true);
  std::vector<std::string> names;
  for (const Node& node : nodes) names.push_back(node.name);
  CHECK(names ==
        std::vector<std::string>{"conv1+relu", "conv2", "relu+max_pool+dropout1", "fc1+relu", "dropout2", "fc2"});
  CHECK(nodes[3].input == Shape{64, 12, 12});
  CHECK(fuse(models::mnist_convnet(), false).size() == 5);
}

TEST_CASE("placement: buffers that are live together do not overlap, others share memory") {
  Random random(3, RandomUse::synthetic);
  for (int round = 0; round < 50; ++round) {
    std::vector<Lifetime> buffers(1 + random.below(30));
    for (Lifetime& b : buffers) {
      b.bytes = random.below(1000);
      b.first = static_cast<int>(random.below(20));
      b.last = b.first + static_cast<int>(random.below(6));
    }
    const std::size_t total = place(buffers);
    std::size_t sum = 0;
    for (const Lifetime& a : buffers) {
      CHECK(a.offset % 64 == 0);
      CHECK(a.offset + a.bytes <= total);
      sum += a.bytes + 64;
      for (const Lifetime& b : buffers) {
        if (&a == &b || a.last < b.first || b.last < a.first || a.bytes == 0 || b.bytes == 0) continue;
        CHECK((a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset));
      }
    }
    CHECK(total <= sum);
  }
  std::vector<Lifetime> apart{{1000, 0, 1, 0}, {1000, 2, 3, 0}};
  CHECK(place(apart) == 1024);
}

TEST_CASE("parameters: they are aligned and in forward order, and buckets cover them from the end") {
  auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
  const Model model = models::mnist_convnet();
  const NormTable norms(model);
  const Plan layouts(model, *context, {.batch = 4}, nullptr, norms);
  const ParameterTable table(model, layouts.parameter_layouts(), context->compute_type());
  std::int64_t end = 0;
  for (const ParameterEntry& entry : table.entries()) {
    CHECK(entry.offset >= end);
    CHECK(entry.offset % 16 == 0);
    end = entry.offset + entry.count;
  }
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 20, std::size_t{1} << 40}) {
    std::int64_t begin = table.size();
    int entry = static_cast<int>(table.entries().size());
    for (const Bucket& bucket : table.buckets(bytes)) {
      CHECK(bucket.range.end == begin);
      CHECK(bucket.first_entry < entry);
      CHECK(table.entry(bucket.first_entry).offset == bucket.range.begin);
      begin = bucket.range.begin;
      entry = bucket.first_entry;
    }
    CHECK(begin == 0);
    CHECK(entry == 0);
  }
}

namespace {

ParameterTable table_of(const Model& model, std::int64_t granularity, bool vectors_first = false) {
  auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
  const NormTable norms(model);
  return {model, Plan(model, *context, {.batch = 2}, nullptr, norms).parameter_layouts(), DType::f32, granularity,
          vectors_first};
}

}  // namespace

TEST_CASE("parameters: the bucket that becomes ready last holds at most one MiB, however large the others are") {
  const ParameterTable table = table_of(models::resnet18({.classes = 100, .input = {3, 32, 32}}), 1);
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{8} << 20, std::size_t{25} << 20}) {
    const std::vector<Bucket> usual = table.buckets(bytes), capped = table.buckets(bytes, kLastBucket);
    CHECK(static_cast<std::size_t>(capped.back().range.size()) * 4 <= kLastBucket);
    CHECK(capped.back().range.size() * 4 > 512 << 10);
    CHECK(capped.back().range.begin == 0);
    if (bytes > kLastBucket) CHECK(usual.back().range.size() > capped.back().range.size());
    std::int64_t begin = table.size();
    for (const Bucket& bucket : capped) {
      CHECK(bucket.range.end == begin);
      CHECK(bucket.range.size() > 0);
      CHECK(table.entry(bucket.first_entry).offset == bucket.range.begin);
      begin = bucket.range.begin;
    }
    for (std::size_t i = 0; i + 2 < capped.size(); ++i) CHECK(capped[i].range == usual[i].range);
  }
  DataParallelOptions options;
  options.devices = gpus({0, 1});
  const auto automatic = [&] { return automatic_buckets(options, table, std::size_t{8} << 20).back().range; };
  CHECK(automatic() == table.buckets(std::size_t{8} << 20, kLastBucket).back().range);
  options.devices = cpus(2);
  CHECK(automatic() == table.buckets(std::size_t{8} << 20).back().range);
  const ParameterTable large = table_of(models::mlp({.input = {1, 28, 28}, .classes = 10}), 1);
  CHECK(large.buckets(std::size_t{1} << 30, 16).back().range.end == large.entry(1).offset);  // at least one entry
}

TEST_CASE("parameters: with a granularity every bucket has even slices and waits for all of its parameters") {
  for (const Model& model : {models::resnet18({.classes = 100, .input = {3, 32, 32}}), models::mnist_convnet(),
                             models::resnet18({.classes = 10, .input = {3, 8, 8}, .width = 8})})
    for (const int ranks : {2, 3, 4, 8}) {
      const std::int64_t granularity = ranks * kernels::kNormBlock;
      const ParameterTable table = table_of(model, granularity);
      CHECK(table.size() >= table.entries().back().offset + table.entries().back().count);
      CHECK(table.size() - table.entries().back().offset - table.entries().back().count < granularity + 16);
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20, std::size_t{8} << 20})
        for (const std::size_t last : {std::size_t{0}, kLastBucket}) {
          std::int64_t begin = table.size();
          int entry = static_cast<int>(table.entries().size());
          for (const Bucket& bucket : table.buckets(bytes, last)) {
            CHECK(bucket.range.end == begin);
            CHECK(bucket.range.size() > 0);
            for (int rank = 0; rank < ranks; ++rank)
              CHECK(kernels::slice_of(bucket.range.size(), rank, ranks).size() * ranks == bucket.range.size());
            const ParameterEntry& first = table.entry(bucket.first_entry);
            CHECK(first.offset <= bucket.range.begin);
            CHECK((bucket.range.begin == first.offset ||
                   bucket.range.begin < first.offset + (first.count + 15) / 16 * 16));
            CHECK(bucket.first_entry <= entry);  // two buckets may share an entry
            begin = bucket.range.begin;
            entry = bucket.first_entry;
          }
          CHECK(begin == 0);
        }
    }
}

TEST_CASE("parameters: trimmed buckets contain every trained parameter and no frozen one at their ends") {
  const Model model = models::resnet18({.classes = 100, .input = {3, 8, 8}, .width = 8});
  const auto count = model.parameters().size();
  std::vector<bool> start(count, true), alternating(count), end(count), vectors(count);
  for (std::size_t i = 0; i < count; ++i) {
    start[i] = i + 2 < count;
    alternating[i] = i / 7 % 2 == 0;
    end[i] = i > 20;
    vectors[i] = model.parameters()[i].shape.rank() == 1;
  }
  for (const bool vectors_first : {false, true})
    for (const std::int64_t granularity : {std::int64_t{1}, 4 * kernels::kNormBlock})
      for (const std::vector<bool>& frozen : {start, alternating, end, vectors})
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 16, std::size_t{8} << 20}) {
          const ParameterTable table = table_of(model, granularity, vectors_first);
          const std::vector<Bucket> usual = table.buckets(bytes);
          std::vector<Bucket> buckets = usual;
          table.trim(buckets, frozen);
          std::vector<std::int64_t> covered(count);
          for (const Bucket& bucket : buckets) {
            CHECK(bucket.range.begin % granularity == 0);
            CHECK(bucket.range.size() % granularity == 0);
            CHECK(bucket.range.size() > 0);
            CHECK(std::ranges::any_of(usual, [&](const Bucket& one) {
              return one.range.begin <= bucket.range.begin && bucket.range.end <= one.range.end &&
                     one.first_entry == bucket.first_entry;
            }));
            bool trains_first = false, trains_last = false;
            for (std::size_t i = 0; i < count; ++i) {
              const ParameterEntry& e = table.entry(static_cast<int>(i));
              const std::int64_t from = std::max(e.offset, bucket.range.begin),
                                 to = std::min(e.offset + e.count, bucket.range.end);
              if (from >= to) continue;
              covered[i] += to - from;
              trains_first |= !frozen[i] && from < bucket.range.begin + granularity;
              trains_last |= !frozen[i] && to + 15 + granularity > bucket.range.end;
            }
            CHECK(trains_first);
            CHECK(trains_last);
          }
          for (std::size_t i = 0; i < count; ++i)
            if (!frozen[i]) CHECK(covered[i] == table.entry(static_cast<int>(i)).count);
          if (&frozen == &start) CHECK(buckets.size() <= 2);
        }
}

TEST_CASE("parameters: vectors that are stored together form the last bucket") {
  const Model model = models::resnet18({.classes = 100, .input = {3, 32, 32}});
  for (const std::int64_t granularity : {std::int64_t{1}, 4 * kernels::kNormBlock}) {
    const ParameterTable usual = table_of(model, granularity), table = table_of(model, granularity, true);
    CHECK(usual.vectors() == 0);
    std::int64_t elements = 0, end = table.vectors();
    for (const ParameterEntry& entry : table.entries()) {
      const bool vector = entry.shape.rank() == 1;
      INFO(entry.name);
      CHECK((entry.offset < table.vectors()) == vector);
      elements += vector ? entry.count : 0;
      if (vector) continue;
      CHECK(entry.offset >= end);
      end = entry.offset + entry.count;
    }
    CHECK(table.vectors() >= elements);
    CHECK(table.vectors() % granularity == 0);
    CHECK(table.vectors() < elements + granularity + 16 * 62);  // parameters start at multiples of 16
    for (const std::size_t last : {std::size_t{0}, kLastBucket}) {
      const std::vector<Bucket> buckets = table.buckets(std::size_t{8} << 20, last);
      CHECK(buckets.back().range == kernels::Range{0, table.vectors()});
      CHECK(buckets.back().first_entry == 0);
      std::int64_t begin = table.size();
      for (const Bucket& bucket : buckets) {
        CHECK(bucket.range.end == begin);
        begin = bucket.range.begin;
        for (int i = 0; i < bucket.first_entry; ++i) {
          const ParameterEntry& early = table.entry(i);
          const bool outside = early.offset + early.count <= bucket.range.begin || early.offset >= bucket.range.end;
          CHECK(outside);
        }
      }
      CHECK(begin == 0);
      if (last != 0) CHECK(buckets[buckets.size() - 2].range.size() * 4 <= static_cast<std::int64_t>(kLastBucket));
    }
  }
}

TEST_CASE("a plan describes its steps, its memory and its reorders") {
  auto context = kernels::backend(DeviceKind::cpu).open({DeviceKind::cpu, 0}, {});
  const Model model = models::mnist_convnet();
  const NormTable norms(model);
  const Plan layouts(model, *context, {.batch = 32}, nullptr, norms);
  const ParameterTable table(model, layouts.parameter_layouts(), context->compute_type());
  const Plan training(model, *context, {.batch = 32}, &table, norms);
  const Plan evaluation(model, *context, {.batch = 32, .training = false}, &table, norms);
  CHECK(evaluation.backward().empty());
  CHECK(evaluation.arena_bytes() < training.arena_bytes());
  CHECK(training.describe().find("conv2") != std::string::npos);
  // Only weights may need another layout, for the data gradient. Activations are never reordered.
  for (const PlanStep& step : training.forward()) CHECK(step.name.find("reorder") == std::string::npos);
  CHECK(training.reorders() <= 3);
}

TEST_CASE("a plan rejects a model that does not end in class scores") {
  auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
  ModelBuilder m("open_end", Shape{1, 8, 8});
  const Model model = m.build(m.conv2d("conv", m.input(), {.out_channels = 2}));
  CHECK_THROWS_WITH(Plan(model, *context, {}, nullptr, NormTable(model)), Catch::Contains("flatten"));
}
