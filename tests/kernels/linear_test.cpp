#include <algorithm>
#include <cmath>

#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr double kLinearTolerance = 1e-5;  // as for convolutions: at most 10^4 products per sum

void check_linear(const Shape& x_shape, std::int64_t out, bool bias, bool relu, Random& random) {
  const HostTensor x = random_tensor(x_shape, random), b = random_tensor({out}, random);
  const HostTensor w = random_tensor({out, x_shape.without_first().numel()}, random);
  const HostTensor dy = random_tensor({x_shape[0], out}, random);

  OpRig oracle(DeviceKind::reference);
  const LayerResult expected = linear(oracle, x, w, bias ? &b : nullptr, dy, relu, Layouts::plain);
  for (const DeviceKind kind : tested_kinds())
    for (const Layouts layouts : kLayouts) {
      INFO(to_string(Device{kind, 0}) << " layouts " << to_string(layouts) << " x " << to_string(x_shape) << " out "
                                      << out << " bias " << bias << " relu " << relu);
      OpRig rig(kind);
      const LayerResult actual = linear(rig, x, w, bias ? &b : nullptr, dy, relu, layouts);
      CHECK(relative_error(actual.y, expected.y) <= kLinearTolerance);
      CHECK(relative_error(actual.dx, expected.dx) <= kLinearTolerance);
      CHECK(relative_error(actual.dw, expected.dw) <= kLinearTolerance);
      if (bias) CHECK(relative_error(actual.db, expected.db) <= kLinearTolerance);
    }
}

// A linear layer that reads the output of a convolution or pool in its blocked layout.
void check_after_blocked(const Shape& x_shape, std::int64_t out, Random& random) {
  const HostTensor x = random_tensor(x_shape, random);
  const HostTensor w = random_tensor({out, x_shape.without_first().numel()}, random);
  const HostTensor dy = random_tensor({x_shape[0], out}, random);
  OpRig oracle(DeviceKind::reference);
  const LayerResult expected = linear(oracle, x, w, nullptr, dy, false, Layouts::plain);
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    const kernels::TensorDesc x_desc = rig.desc(x_shape, rig.preferred(x_shape));
    INFO(to_string(Device{kind, 0}) << " x " << to_string(x_shape) << " in " << x_desc.layout.name);
    const auto forward = rig.context().make_op(
        kernels::LinearForward{.x = x_desc, .w = rig.desc(w.shape), .y = rig.desc(dy.shape), .bias = false});
    const DeviceTensor device_w = rig.upload(w, forward->tensors()[1]), y = rig.poisoned(forward->tensors()[2]);
    rig.run(*forward, {rig.upload(x, x_desc).data(), device_w.data(), nullptr, y.data()});
    CHECK(relative_error(rig.download(y), expected.y) <= kLinearTolerance);

    const auto backward = rig.context().make_op(kernels::LinearBackwardData{y.desc, rig.desc(w.shape), x_desc});
    const DeviceTensor dx = rig.poisoned(x_desc);
    rig.run(*backward, {rig.upload(dy, y.desc).data(), rig.relaid(device_w, backward->tensors()[1]).data(), dx.data()});
    CHECK(relative_error(rig.download(dx), expected.dx) <= kLinearTolerance);

    const auto weights = rig.context().make_op(
        kernels::LinearBackwardWeights{.x = x_desc, .dy = y.desc, .dw = rig.desc(w.shape), .bias = false});
    const DeviceTensor dw = rig.poisoned(weights->tensors()[2]);
    rig.run(*weights, {rig.upload(x, x_desc).data(), rig.upload(dy, y.desc).data(), dw.data(), nullptr});
    CHECK(relative_error(rig.download(dw), expected.dw) <= kLinearTolerance);
  }
}

}  // namespace

TEST_CASE("linear layers agree with the reference, forward and backward, in every layout") {
  Random random(4, RandomUse::synthetic);
  for (const bool bias : {true, false})
    for (const bool relu : {true, false}) {
      check_linear({1, 1}, 1, bias, relu, random);
      check_linear({3, 13}, 5, bias, relu, random);
      check_linear({7, 128}, 10, bias, relu, random);
      check_linear({5, 257}, 33, bias, relu, random);
    }
}

TEST_CASE("a linear layer flattens (N, C, H, W) in C, H, W order whatever the layout") {
  Random random(5, RandomUse::synthetic);
  check_linear({3, 8, 3, 5}, 13, true, true, random);
  check_linear({1, 5, 3, 3}, 8, true, false, random);
  check_linear({7, 13, 1, 1}, 3, false, true, random);
  check_linear({2, 64, 12, 12}, 16, true, true, random);
}

TEST_CASE("a linear layer reads a blocked tensor in place and ignores its padded channels") {
  Random random(6, RandomUse::synthetic);
  check_after_blocked({3, 8, 5, 3}, 13, random);
  check_after_blocked({3, 5, 3, 3}, 8, random);
  check_after_blocked({2, 13, 4, 4}, 10, random);
  check_after_blocked({2, 64, 6, 6}, 16, random);
}

TEST_CASE("in evaluation a NaN passes a linear layer with its ReLU") {
  Random random(8, RandomUse::synthetic);
  for (const Shape& x_shape : {Shape{5, 33}, Shape{64, 256}, Shape{1, 16}, Shape{300, 40}}) {
    HostTensor x = random_tensor(x_shape, random);
    const HostTensor w = random_tensor({24, x_shape[1]}, random), b = random_tensor({24}, random);
    const Shape y_shape{x_shape[0], 24};
    x.values[3] = std::nan("");
    for (const DeviceKind kind : tested_kinds()) {
      INFO(to_string(Device{kind, 0}) << " x " << to_string(x_shape));
      OpRig rig(kind);
      const auto op = rig.context().make_op(kernels::LinearForward{
          rig.desc(x_shape), rig.desc(w.shape), rig.desc(y_shape), true, /*relu=*/true, /*training=*/false});
      const DeviceTensor bias = rig.upload(b, rig.plain_full(b.shape)), y = rig.poisoned(op->tensors()[2]);
      rig.run(*op,
              {rig.upload(x, op->tensors()[0]).data(), rig.upload(w, op->tensors()[1]).data(), bias.data(), y.data()});
      const std::vector<double> values = rig.download(y).values;
      CHECK(std::all_of(values.begin(), values.begin() + 24, [](double value) { return std::isnan(value); }));
      CHECK(std::none_of(values.begin() + 24, values.end(), [](double value) { return std::isnan(value); }));
    }
  }
}
