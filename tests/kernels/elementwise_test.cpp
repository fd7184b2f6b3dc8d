#include <algorithm>
#include <cmath>

#include "kernels/layer_calls.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr double kElementwiseTolerance = 2e-7;  // one rounding

const Shape kShapes[] = {{1, 1},       {3, 13},      {7, 128},      {1, 1, 5, 3},
                         {3, 5, 7, 5}, {7, 8, 3, 3}, {2, 13, 4, 5}, {3, 32, 5, 7}};

// Calls check(rig, layout, in_place) on every device.
template <typename Check>
void in_every_layout(const Shape& shape, Check check) {
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    for (const kernels::Layout& layout : layouts_of(rig, shape))
      for (const bool in_place : {false, true}) {
        INFO(to_string(Device{kind, 0}) << " " << layout.name << (in_place ? " in place" : ""));
        check(rig, layout, in_place);
      }
  }
}

}  // namespace

TEST_CASE("ReLU keeps positive values exactly, and its gradient follows the output") {
  Random random(11, RandomUse::synthetic);
  for (const Shape& shape : kShapes) {
    HostTensor x = random_tensor(shape, random), dy = random_tensor(shape, random);
    x.values[0] = 0;  // passes no gradient
    HostTensor y = x, dx = dy;
    for (double& value : y.values) value = std::max(0.0, value);
    for (std::size_t i = 0; i < dx.values.size(); ++i) dx.values[i] = y.values[i] > 0 ? dy.values[i] : 0;
    in_every_layout(shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
      CHECK(relu_forward(rig, x, layout, in_place).values == y.values);
      CHECK(relu_backward(rig, dy, y, layout, in_place).values == dx.values);
    });
  }
}

namespace {

const Function kFunctions[] = {Relu6{}, LeakyRelu{0.2f}, Elu{1.5f}, Sigmoid{},  HardSigmoid{}, Tanh{},
                               Silu{},  HardSwish{},     Gelu{},    GeluTanh{}, Times{-0.3f}};
static_assert(std::size(kFunctions) == std::variant_size_v<Function>);

HostTensor times(HostTensor tensor, double factor) {
  for (double& value : tensor.values) value *= factor;
  return tensor;
}

}  // namespace

TEST_CASE("every function and its derivative agree with the reference, in every layout and in place") {
  Random random(15, RandomUse::synthetic);
  for (const Shape& shape : kShapes)
    for (const Function& function : kFunctions) {
      if (shape.numel() == 1) continue;  // the value may be near zero, with a large relative error
      INFO(name_of(function));
      const HostTensor x = times(random_tensor(shape, random), 7), dy = random_tensor(shape, random);
      OpRig oracle(DeviceKind::reference);
      const HostTensor y = function_forward(oracle, x, function, oracle.plain(shape), false);
      const HostTensor dx = function_backward(oracle, dy, x, function, oracle.plain(shape), false);
      in_every_layout(shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
        CHECK(relative_error(function_forward(rig, x, function, layout, in_place), y) <= 1e-6);
        CHECK(relative_error(function_backward(rig, dy, x, function, layout, in_place), dx) <= 1e-6);
      });
    }
}

TEST_CASE("every function keeps NaN, and has its limits at infinity or NaN") {
  HostTensor x = zeros({1, 3});
  x.values = {NAN, INFINITY, -INFINITY};
  for (const Function& function : kFunctions) {
    OpRig oracle(DeviceKind::reference);
    const HostTensor expected = function_forward(oracle, x, function, oracle.plain(x.shape), false);
    in_every_layout(x.shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
      const HostTensor y = function_forward(rig, x, function, layout, in_place);
      INFO(name_of(function));
      CHECK(std::isnan(y.values[0]));
      for (const std::size_t i : {1, 2})
        CHECK((y.values[i] == expected.values[i] || (std::isnan(y.values[i]) && std::isnan(expected.values[i]))));
    });
  }
}

TEST_CASE("an addition adds, applies ReLU on request, and keeps NaN") {
  Random random(14, RandomUse::synthetic);
  for (const Shape& shape : kShapes)
    for (const bool relu : {false, true}) {
      const HostTensor a = random_tensor(shape, random), b = random_tensor(shape, random);
      HostTensor y = a;
      for (std::size_t i = 0; i < y.values.size(); ++i) {
        y.values[i] += b.values[i];
        if (relu) y.values[i] = std::max(0.0, y.values[i]);
      }
      in_every_layout(shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
        CHECK(relative_error(add(rig, a, b, relu, layout, in_place), y) <= kElementwiseTolerance);
      });
    }
  HostTensor bad = zeros({1, 1, 1, 2});
  bad.values[1] = NAN;
  in_every_layout(bad.shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
    CHECK(std::isnan(add(rig, bad, zeros(bad.shape), true, layout, in_place).values[1]));
  });
}

TEST_CASE("dropout numbers elements in C, H, W order, whatever the layout") {
  Random random(12, RandomUse::synthetic);
  const kernels::StepInputs inputs{.seed = 0xfedcba9876543210, .step = (std::uint64_t{1} << 32) + 5};
  for (const Shape& shape : kShapes)
    for (const float p : {0.0f, 0.25f, 0.5f, 0.9f}) {
      const kernels::DropoutSpec spec{p, 11};
      const HostTensor x = random_tensor(shape, random);
      std::vector<std::int64_t> samples;
      for (std::int64_t n = 0; n < shape[0]; ++n) samples.push_back(1000 * n + (n << 34));

      HostTensor expected = x;
      const std::int64_t per_sample = shape.without_first().numel();
      for (std::int64_t i = 0; i < shape.numel(); ++i) {
        const std::int64_t element = i % per_sample;
        const PhiloxWords words =
            dropout_words(inputs.seed, spec.layer, inputs.step, static_cast<std::uint64_t>(samples[i / per_sample]),
                          static_cast<std::uint32_t>(element / 4));
        expected.values[i] = words[element % 4] < drop_threshold(p) ? 0 : x.values[i] / (1.0 - static_cast<double>(p));
      }
      in_every_layout(shape, [&](OpRig& rig, const kernels::Layout& layout, bool in_place) {
        CHECK(relative_error(dropout(rig, x, spec, samples, inputs, layout, in_place), expected) <=
              kElementwiseTolerance);
      });
    }
}

TEST_CASE("dropout sets a share p of the elements to zero") {
  OpRig rig(DeviceKind::reference);
  HostTensor x = zeros({10, 1000});
  std::fill(x.values.begin(), x.values.end(), 1.0);
  const auto y = dropout(rig, x, {0.25f, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {.seed = 42}, rig.plain(x.shape), false);
  const auto dropped = std::count(y.values.begin(), y.values.end(), 0.0);
  CHECK(std::abs(static_cast<double>(dropped) - 2500) < 5 * std::sqrt(10000 * 0.25 * 0.75));
}

TEST_CASE("accumulate adds element by element, any count") {
  Random random(13, RandomUse::synthetic);
  for (const std::int64_t count : {1, 7, 16, 1000, 4097}) {
    const HostTensor x = random_tensor({count}, random), y = random_tensor({count}, random);
    HostTensor sum = y;
    for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += x.values[i];
    for (const DeviceKind kind : tested_kinds()) {
      OpRig rig(kind);
      CHECK(relative_error(accumulate(rig, x, y), sum) <= kElementwiseTolerance);
    }
  }
}

TEST_CASE("fill writes zero bytes and no more") {
  for (const DeviceKind kind : tested_kinds())
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{4096}}) {
      OpRig rig(kind);
      std::vector<unsigned char> content(bytes + 8, 0xEE);
      const auto memory = rig.upload_bytes(content.data(), content.size());
      rig.run(*rig.context().make_op(kernels::Fill{bytes}), {memory->data()});
      rig.download_bytes(content.data(), *memory, content.size());
      CHECK(std::count(content.begin(), content.end(), 0) == static_cast<std::ptrdiff_t>(bytes));
      CHECK(std::count(content.end() - 8, content.end(), 0xEE) == 8);
    }
}
