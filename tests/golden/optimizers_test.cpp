// Twenty steps with each optimizer against PyTorch's in float64.
#include <algorithm>
#include <cmath>

#include "dp/models.h"
#include "engine/optimizer/optimizer.h"
#include "golden/golden_file.h"
#include "support/catch.h"
#include "support/tested_kinds.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 16;
// Relative to the distance moved. PyTorch's own float32 differs by at most 2e-6, with Muon 8e-6 (float32_error in the
// file).
constexpr double kFloat32 = 2e-5, kFloat64 = 1e-12;

struct Case {
  std::string name;  // in the file
  Optimizer optimizer;
};

// The cases of the file. Its tensors CASE.option.OPTION are the options of a case, whose name begins with that of the
// optimizer.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    const OptionTable<Optimizer>& options = engine::optimizer_options();
    const std::string part = ".option.";
    const GoldenFile golden("optimizers.safetensors");
    std::vector<Case> cases;
    for (const std::string& tensor : golden.names()) {
      const std::size_t at = tensor.find(part);
      if (at == std::string::npos) continue;
      const std::string name = tensor.substr(0, at);
      if (cases.empty() || cases.back().name != name) {
        cases.push_back({name, {}});
        options.set(*options.find("optimizer"), cases.back().optimizer, name.substr(0, name.find('_')));
      }
      const auto* const row = options.find(tensor.substr(at + part.size()));
      REQUIRE(row != nullptr);
      const std::vector<double> values = golden.values(tensor).values;
      const OptionValue value = row->accepts.kind == Accepts::Kind::flag    ? OptionValue(values[0] != 0)
                                : row->accepts.count == Accepts::Count::two ? OptionValue(values)
                                                                            : OptionValue(values[0]);
      options.set(*row, cases.back().optimizer, value);
    }
    return cases;
  }();
  return all;
}

const Optimizer& optimizer_of(const std::string& name) {
  return std::ranges::find(cases(), name, &Case::name)->optimizer;
}

Model network() { return models::mlp({.input = {1, 6, 6}, .hidden = {16}, .classes = 7}); }

Batch batch_of(int step) {
  const auto number = static_cast<std::uint64_t>(step);
  Batch batch{Tensor({kBatch, 1, 6, 6}), Tensor({kBatch}, DType::i32), Tensor({kBatch}, DType::i64)};
  Random images(42, RandomUse::synthetic, number), labels(42, RandomUse::synthetic, number, 1);
  for (float& value : batch.images.span<float>()) value = images.uniform(-1, 1);
  for (std::int32_t& label : batch.labels.span<std::int32_t>()) label = static_cast<std::int32_t>(labels.below(7));
  for (std::int64_t& sample : batch.samples.span<std::int64_t>()) sample = 0;
  return batch;
}

double distance(const Tensor& tensor, const HostTensor& expected) {
  REQUIRE(tensor.shape() == expected.shape);
  double sum = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double value = tensor.dtype() == DType::f64 ? tensor.data<double>()[i] : tensor.data<float>()[i];
    sum += (value - expected.values[i]) * (value - expected.values[i]);
  }
  return std::sqrt(sum);
}

double norm(const HostTensor& tensor) {
  double sum = 0;
  for (const double value : tensor.values) sum += value * value;
  return std::sqrt(sum);
}

DataParallelOptions options_for(Device device, int replicas, Reduce reduce) {
  DataParallelOptions options = on_cpus(replicas);
  options.devices.assign(static_cast<std::size_t>(replicas), device);
  options.reduce = reduce;
  options.autotune = false;
  return options;
}

void train(DataParallel& net, const Optimizer& optimizer, int first, int end) {
  for (int step = first; step < end; ++step) net.train_step(batch_of(step), optimizer);
}

}  // namespace

TEST_CASE("every optimizer has a case") {
  for (const Optimizer& optimizer : engine::every_optimizer()) {
    INFO(name_of(optimizer));
    CHECK(std::ranges::any_of(cases(), [&](const Case& one) { return one.optimizer.index() == optimizer.index(); }));
  }
}

TEST_CASE("twenty steps equal PyTorch's with every optimizer, device, number of replicas and reduce") {
  const GoldenFile golden("optimizers.safetensors");
  for (const Case& one : cases())
    for (const DeviceKind kind : tested_kinds())
      for (const int replicas : {1, 3})
        for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
          const Device device{kind, 0};
          INFO(one.name << " " << to_string(device) << " replicas " << replicas << " reduce "
                        << static_cast<int>(reduce));
          const double tolerance = kind == DeviceKind::reference ? kFloat64 : kFloat32;
          DataParallel net(network(), options_for(device, replicas, reduce));
          train(net, one.optimizer, 0, kSteps);
          const std::string prefix = std::string(one.name) + ".";
          for (const auto& [name, weight] : net.weights()) {
            INFO(name);
            const double moved = golden.values(prefix + "moved." + name).values[0];
            CHECK(moved > 0.01);
            CHECK(distance(weight, golden.values(prefix + "weight." + name)) / moved <= tolerance);
          }
          const OptimizerState state = net.optimizer_state();
          CHECK(state.updates == kSteps);
          CHECK(!state.tensors.empty());
          for (const auto& [name, values] : state.tensors) {
            INFO(name);
            const HostTensor expected = golden.values(prefix + "state." + name);
            CHECK(distance(values, expected) <= tolerance * norm(expected));
          }
        }
}

TEST_CASE("every optimizer gives the same bits wherever the update runs") {
  for (const Case& one : cases()) {
    std::vector<std::pair<std::string, Tensor>> weights, state;
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
      INFO(one.name << " reduce " << static_cast<int>(reduce));
      DataParallel net(network(), options_for(Device{}, 3, reduce));
      train(net, one.optimizer, 0, kSteps);
      if (weights.empty()) weights = net.weights(), state = net.optimizer_state().tensors;
      CHECK(bit_equal(net.weights(), weights));
      CHECK(bit_equal(net.optimizer_state().tensors, state));
      CHECK(net.replicas_identical());
    }
  }
}

TEST_CASE("training continues to the same bits from weights and state that were read and set, on other replicas") {
  for (const Case& one : cases()) {
    INFO(one.name);
    DataParallelOptions options = options_for(Device{}, 4, Reduce::sharded);
    options.logical_shards = 4;
    DataParallel whole(network(), options), begun(network(), options);
    train(whole, one.optimizer, 0, kSteps);
    train(begun, one.optimizer, 0, 7);
    options.devices = cpus(2);
    DataParallel resumed(network(), options);
    resumed.set_weights(begun.weights());
    resumed.set_optimizer_state(begun.optimizer_state());
    resumed.set_step_count(begun.step_count());
    train(resumed, one.optimizer, 7, kSteps);
    CHECK(bit_equal(resumed.weights(), whole.weights()));
    CHECK(bit_equal(resumed.optimizer_state().tensors, whole.optimizer_state().tensors));
    CHECK(resumed.optimizer_state().updates == kSteps);
  }
}

TEST_CASE("a step with another optimizer begins with a new state") {
  DataParallel net(network(), options_for(Device{}, 2, Reduce::sharded)),
      fresh(network(), options_for(Device{}, 2, Reduce::sharded));
  const Optimizer& sgd = optimizer_of("sgd");
  const Optimizer& adamw = optimizer_of("adamw");
  train(net, sgd, 0, 3);
  fresh.set_weights(net.weights());
  fresh.set_step_count(net.step_count());
  train(net, adamw, 3, 6);
  train(fresh, adamw, 3, 6);
  CHECK(bit_equal(net.weights(), fresh.weights()));
  CHECK(net.optimizer_state().optimizer == "adamw");
  CHECK(net.optimizer_state().updates == 3);
  train(net, sgd, 6, 7);
  CHECK(net.optimizer_state().optimizer == "sgd");
  CHECK(net.optimizer_state().updates == 1);
}

TEST_CASE("an optimizer counts its own updates, whatever ran and was skipped before it") {
  DataParallelOptions options = options_for(Device{}, 2, Reduce::sharded);
  options.on_nonfinite = OnNonfinite::skip;
  const Optimizer& adamw = optimizer_of("adamw");
  for (const float momentum : {0.0f, 0.9f}) {  // without momentum SGD has no state
    INFO("momentum " << momentum);
    const Optimizer sgd = Sgd{.lr = 0.1f, .momentum = momentum};
    DataParallel net(network(), options), fresh(network(), options);
    train(net, sgd, 0, 3);
    Batch bad = batch_of(3);
    bad.images.span<float>()[0] = NAN;
    net.train_step(bad, sgd);
    fresh.set_weights(net.weights());
    fresh.set_step_count(net.step_count());
    train(net, adamw, 4, 5);
    CHECK(net.optimizer_state().updates == 1);
    CHECK(net.take_stats().skipped == 1);
    CHECK(net.optimizer_state().updates == 1);
    train(net, adamw, 5, 7);
    train(fresh, adamw, 4, 7);
    CHECK(bit_equal(net.weights(), fresh.weights()));
    CHECK(net.optimizer_state().updates == 3);
  }
}

TEST_CASE("a state with an impossible number of updates is rejected and changes nothing") {
  DataParallel net(network(), options_for(Device{}, 1, Reduce::master));
  train(net, optimizer_of("adamw"), 0, 2);
  const OptimizerState before = net.optimizer_state();
  for (const std::int64_t updates : {std::int64_t{-1}, std::int64_t{1} << 53}) {
    OptimizerState state = before;
    state.updates = updates;
    CHECK_THROWS_WITH(net.set_optimizer_state(state), Catch::Contains(std::to_string(updates) + " updates"));
  }
  CHECK(net.optimizer_state().updates == 2);
  CHECK(bit_equal(net.optimizer_state().tensors, before.tensors));
}
