// The logits that evaluate() stores are those of predict(), on every kind of device and with asynchronous streams.
#include <algorithm>
#include <map>

#include "engine/base/test_modes.h"
#include "support/catch.h"
#include "support/fake_system.h"
#include "support/tested_kinds.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

using Rows = std::map<std::int64_t, std::vector<double>>;  // by sample

double element(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::f64 ? tensor.data<double>()[i] : static_cast<double>(tensor.data<float>()[i]);
}

Rows rows_of(const std::vector<std::int64_t>& samples, const Tensor& logits) {
  Rows rows;
  const std::int64_t classes = logits.shape()[1];
  for (std::size_t row = 0; row < samples.size(); ++row)
    for (std::int64_t k = 0; k < classes; ++k)
      rows[samples[row]].push_back(element(logits, static_cast<std::int64_t>(row) * classes + k));
  return rows;
}

// Two batches, the second smaller. Their samples do not overlap.
std::vector<Batch> two_batches(const Model& model) {
  std::vector<Batch> batches{random_batch(model, 9, 1), random_batch(model, 4, 2)};
  for (std::int64_t& sample : batches[1].samples.span<std::int64_t>()) ++sample;
  return batches;
}

void check_stored(DataParallel& net, const std::vector<Batch>& batches) {
  for (const Batch& batch : batches) net.evaluate(batch);
  const EvaluatedLogits stored = net.take_logits();
  REQUIRE(stored.samples.size() == 13);
  const Rows found = rows_of(stored.samples, stored.logits);
  std::map<std::int64_t, std::int32_t> labels;
  for (std::size_t i = 0; i < 13; ++i) labels[stored.samples[i]] = stored.labels[i];
  for (const Batch& batch : batches) {
    const auto samples = batch.samples.span<std::int64_t>();
    const Rows wanted = rows_of({samples.begin(), samples.end()}, net.predict(batch.images).clone());
    for (const auto& [sample, row] : wanted) CHECK(found.at(sample) == row);
    for (std::int64_t i = 0; i < batch.size(); ++i)
      CHECK(labels.at(samples[static_cast<std::size_t>(i)]) == batch.labels.data<std::int32_t>()[i]);
  }
  CHECK(net.take_logits().samples.empty());
}

}  // namespace

TEST_CASE("evaluate() stores the logits of predict(), which are taken once") {
  const Model model = small_convnet();
  const std::vector<Batch> batches = two_batches(model);
  for (const DeviceKind kind : tested_kinds())
    for (const int replicas : {1, 3})
      for (const Split split : {Split::balanced, Split::chunk}) {
        INFO(to_string(Device{kind, 0}) << ", " << replicas << " replicas");
        DataParallelOptions options = on_cpus(replicas);
        options.devices.assign(static_cast<std::size_t>(replicas), Device{kind, 0});
        options.deterministic = true;
        options.split = split;
        DataParallel net(model, options);
        net.evaluate(batches[0]);
        CHECK(net.take_logits().samples.empty());
        const std::size_t before = net.memory_use(0).total();
        REQUIRE(net.store_logits(2, 9));
        CHECK(net.memory_use(0).total() > before);
        check_stored(net, batches);
        check_stored(net, batches);
        CHECK(net.take_stats().samples == 9 + 2 * 13);
      }
}

TEST_CASE("evaluate() stores the logits of all rows, however the batch is split by weight") {
  const Model model = small_convnet();
  for (const std::vector<int>& weights : {std::vector{3, 1}, {1, 3}, {1, 1, 8}, {1, 100}}) {
    DataParallelOptions options = on_cpus(static_cast<int>(weights.size()));
    options.split_weights = weights;
    DataParallel net(model, options);
    REQUIRE(net.store_logits(2, 9));
    check_stored(net, two_batches(model));
  }
}

TEST_CASE("rows beyond the room for stored logits are left out, and other room replaces it") {
  const Model model = small_convnet();
  const std::vector<Batch> batches = two_batches(model);
  DataParallel net(model, on_cpus(1));
  net.evaluate(batches[0]);
  const std::size_t before = net.memory_use(0).total();
  REQUIRE(net.store_logits(1, 9));
  const std::size_t with_room = net.memory_use(0).total();
  for (int i = 0; i < 3; ++i) net.evaluate(batches[0]);
  CHECK(net.take_logits().samples.size() == 9);
  REQUIRE(net.store_logits(1, 9));
  CHECK(net.memory_use(0).total() == with_room);
  REQUIRE(net.store_logits(2, 9));
  CHECK(net.memory_use(0).total() - before == 2 * (with_room - before));
  check_stored(net, batches);
}

TEST_CASE("stored logits with asynchronous streams, logical shards and copied inputs") {
  const Model model = residual_net();
  const std::vector<Batch> batches = two_batches(model);
  const auto stored = [&](bool threaded) {
    if (threaded) engine::test_modes() = {true, 5, true};
    DataParallelOptions options = on_cpus(2);
    options.logical_shards = 4;
    DataParallel net(model, options);
    engine::test_modes() = {};
    REQUIRE(net.store_logits(2, 9));
    for (const Batch& batch : batches) net.evaluate(batch);
    const EvaluatedLogits taken = net.take_logits();
    return rows_of(taken.samples, taken.logits);
  };
  const Rows inline_rows = stored(false);
  CHECK(inline_rows.size() == 13);
  CHECK(stored(true) == inline_rows);
}

TEST_CASE("the memory for stored logits fits the most rows that a replica can get") {
  const Model model = small_convnet();  // seven classes of float32
  const auto check = [&](const char* what, const DataParallelOptions& options, const std::vector<std::size_t>& rows) {
    DataParallel net(model, options);
    const auto held = [&](std::size_t device) { return net.memory_use(static_cast<int>(device)).other; };
    std::vector<std::size_t> before;
    for (std::size_t device = 0; device < rows.size(); ++device) before.push_back(held(device));
    REQUIRE(net.store_logits(2, 9));
    for (std::size_t device = 0; device < rows.size(); ++device) {
      INFO(what << ", device " << device);
      CHECK(held(device) - before[device] == std::max<std::size_t>(2 * rows[device] * 7 * 4, 1));
    }
  };
  check("one replica", on_cpus(1), {9});
  check("equal shares", on_cpus(4), {3, 3, 3, 3});
  DataParallelOptions options = on_cpus(2);
  options.logical_shards = 4;
  check("logical shards", options, {6, 6});  // two shards of at most three rows
  options = on_cpus(3);
  options.split_weights = {1, 4, 2};
  const std::vector<std::int64_t> shares = split_batch(9, options.split_weights);
  check("shares by weight", options,
        {static_cast<std::size_t>(shares[0]) + 1, static_cast<std::size_t>(shares[1]) + 1,
         static_cast<std::size_t>(shares[2]) + 1});
  options = on_cpus(4);
  options.pipeline = {.stages = 2, .micro_batches = 2};
  check("a pipeline's last stages", options, {0, 6, 0, 6});  // two micro-batches of at most five rows
}

TEST_CASE("if the memory for logits cannot be allocated, none are stored and earlier memory is released") {
  const Model model = small_convnet();
  for (const int replicas : {1, 2}) {
    const FakeSystem system;
    system.set_available(64'000);
    DataParallel net(model, on_cpus(replicas));
    REQUIRE(net.store_logits(1, 9));
    system.set_available(1024);
    CHECK_FALSE(net.store_logits(10, 20'000));
    system.set_available(64'000);
    net.evaluate(random_batch(model, 9));
    CHECK(net.take_logits().samples.empty());
    CHECK(net.take_stats().samples == 9);
  }
}
