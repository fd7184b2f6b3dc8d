#include <bit>

#include "kernels/op_rig.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

struct Result {
  HostTensor y, dx;
};

Result softsign(OpRig& rig, const HostTensor& x, const HostTensor& dy, const kernels::Layout& layout) {
  const auto forward = rig.context().make_op(kernels::SoftsignForward{rig.desc(x.shape, layout)});
  const DeviceTensor from = rig.upload(x, forward->tensors()[0]), to = rig.poisoned(from.desc);
  rig.run(*forward, {from.data(), to.data()});
  const auto backward = rig.context().make_op(kernels::SoftsignBackward{from.desc});
  const DeviceTensor gradient = rig.upload(dy, from.desc);
  rig.run(*backward, {gradient.data(), from.data(), gradient.data()});
  return {rig.download(to), rig.download(gradient)};
}

Model softsign_net() {
  ModelBuilder m("softsign_net", Shape{2, 6, 6});
  const auto x = m.softsign(m.conv2d("conv", m.input(), {.out_channels = 5, .kernel = 3}));
  return m.build(m.linear("fc2", m.softsign(m.linear("fc1", m.flatten(x), {.out_features = 7})), {.out_features = 4}));
}

DataParallelOptions on_one(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return on_gpus(1, 1);
  return kind == DeviceKind::cpu ? on_cpus(1) : on_reference();
}

std::vector<NamedTensor> gradients_of(DataParallel& net, const Batch& batch) {
  net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
  return net.gradients();
}

}  // namespace

TEST_CASE("softsign on every device equals the reference, in any layout and for any number of elements") {
  OpRig oracle(DeviceKind::reference);
  Random random(1, RandomUse::synthetic);
  for (const Shape& shape : {Shape{3, 13}, Shape{3, 5, 7, 5}, Shape{2, 16, 3, 3}}) {
    HostTensor x = random_tensor(shape, random);
    for (double& value : x.values) value *= 4;
    const HostTensor dy = random_tensor(shape, random);
    const Result expected = softsign(oracle, x, dy, oracle.plain(shape));
    for (const DeviceKind kind : tested_kinds()) {
      OpRig rig(kind);
      std::vector<kernels::Layout> layouts{rig.plain(shape)};
      if (shape.rank() == 4) layouts.push_back(rig.preferred(shape));
      for (const kernels::Layout& layout : layouts) {
        INFO(to_string(Device{kind, 0}) << " " << layout.name);
        const Result result = softsign(rig, x, dy, layout);
        CHECK(relative_error(result.y, expected.y) <= 5e-7);
        CHECK(relative_error(result.dx, expected.dx) <= 5e-7);
      }
    }
  }
}

TEST_CASE("the reference rounds softsign to bfloat16") {
  OpRig rig(DeviceKind::reference, 1, DType::bf16);
  Random random(2, RandomUse::synthetic);
  const HostTensor x = random_tensor({4, 9}, random);
  const Result result = softsign(rig, x, x, rig.plain(x.shape));
  for (const HostTensor* tensor : {&result.y, &result.dx})
    for (const double value : tensor->values) {
      CHECK(static_cast<double>(static_cast<float>(value)) == value);
      CHECK((std::bit_cast<std::uint32_t>(static_cast<float>(value)) & 0xffff) == 0);
    }
}

TEST_CASE("the gradients of a network with softsign equal difference quotients in float64") {
  const Model model = softsign_net();
  const Batch batch = random_batch(model, 5);
  DataParallel net(model, on_reference());
  const auto gradients = gradients_of(net, batch);
  const auto weights = net.weights();
  const double h = 1e-5;
  for (std::size_t t = 0; t < weights.size(); ++t)
    for (std::int64_t i = 0; i < weights[t].second.numel(); i += 1 + weights[t].second.numel() / 5) {
      const auto loss_at = [&](double by) {
        Tensor shifted = weights[t].second.clone();
        shifted.data<double>()[i] += by;
        net.set_weights({{weights[t].first, shifted}});
        return cross_entropy(net.forward(batch.images), batch.labels).value;
      };
      const double quotient = (loss_at(h) - loss_at(-h)) / (2 * h);
      net.set_weights({weights[t]});
      INFO(weights[t].first << " element " << i);
      CHECK(value_at(gradients[t].second, i) == Approx(quotient).margin(1e-9).epsilon(1e-6));
    }
}

TEST_CASE("a network with softsign has the reference's gradients on every device and learns a batch") {
  const Model model = softsign_net();
  const Batch batch = random_batch(model, 9);
  DataParallel oracle(model, on_reference());
  const auto expected = gradients_of(oracle, batch);
  for (const DeviceKind kind : tested_kinds()) {
    INFO(to_string(Device{kind, 0}));
    DataParallel net(model, on_one(kind));
    CHECK(worst_error(gradients_of(net, batch), expected).error <= 1e-5);
    const auto loss = [&] { return cross_entropy(net.forward(batch.images), batch.labels).value; };
    const double before = loss();
    for (int step = 0; step < 20; ++step) net.train_step(batch, Sgd{.lr = 0.2f});
    CHECK(loss() < 0.9 * before);
  }
}

TEST_CASE("an added optimizer updates the weights alike on every device and learns a batch") {
  const Model model = softsign_net();
  const Batch batch = random_batch(model, 9);
  for (const DeviceKind kind : tested_kinds()) {
    INFO(to_string(Device{kind, 0}));
    DataParallel net(model, on_one(kind));
    const auto loss = [&] { return cross_entropy(net.forward(batch.images), batch.labels).value; };
    const double before = loss();
    for (int step = 0; step < 20; ++step) net.train_step(batch, Signum{.lr = 0.01f});
    CHECK(loss() < 0.9 * before);
    CHECK(net.optimizer_state().optimizer == "signum");
  }
}
