// Every op with bfloat16 and float16 activations, against the reference, which rounds float64 results. Both start from
// the same rounded inputs. Results are equal unless float32 rounding moves a value across the midpoint of two
// neighbours.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dp/error.h"
#include "kernels/layer_calls.h"
#include "kernels/low_float.h"
#include "kernels/norm_calls.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"
#include "support/emulated_bfloat16.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::StepInputs;
using kernels::Window;

constexpr DType kLow[] = {DType::bf16, DType::f16};
constexpr double kFull = 2e-6;  // float32 results: gradients of weights, as with float32 activations

// check(rig, oracle) for each type on each device that supports it. CPUs have bfloat16 only: by their own instructions,
// where they have them, and emulated.
template <typename Check>
void in_low_precision(const Check& check) {
  for (const DType type : kLow) {
    OpRig oracle(DeviceKind::reference, 1, type);
    const auto on = [&](DeviceKind kind, const char* how) {
      INFO(to_string(Device{kind, 0}) << " " << to_string(type) << how);
      OpRig rig(kind, 1, type);
      check(rig, oracle);
    };
    for (const DeviceKind kind : tested_kinds()) {
      if (kind != DeviceKind::cpu) {
        on(kind, "");
      } else if (type == DType::bf16) {
        if (kernels::has_bfloat16()) on(kind, "");
        const EmulatedBfloat16 emulated;
        on(kind, ", emulated");
      }
    }
  }
}

// For results in the activation type: at most 1 % of the values (or one value) may be the neighbour of the expected
// one.
void check_rounded(OpRig& rig, const HostTensor& actual, const HostTensor& expected) {
  REQUIRE(actual.shape == expected.shape);
  const double step = rig.context().activation_type() == DType::bf16 ? 0x1p-7 : 0x1p-10;
  const double size = norm(expected.values) / std::sqrt(static_cast<double>(expected.values.size()) + 1);
  std::size_t moved = 0, wrong = 0;
  for (std::size_t i = 0; i < actual.values.size(); ++i) {
    const double away = std::abs(actual.values[i] - expected.values[i]);
    moved += away > 1e-6 * size;
    wrong += !(away <= 1.001 * step * std::abs(expected.values[i]) + 1e-6 * size);
  }
  CHECK(wrong == 0);
  CHECK(moved <= std::max<std::size_t>(1, actual.values.size() / 100));
}

HostTensor scaled(HostTensor tensor, double factor) {
  for (double& value : tensor.values) value *= factor;
  return tensor;
}

std::vector<std::int64_t> keys_of(std::int64_t samples) {
  std::vector<std::int64_t> keys;
  for (std::int64_t n = 0; n < samples; ++n) keys.push_back(1000 * n + (n << 34));
  return keys;
}

void check_layer(OpRig& rig, const LayerResult& actual, const LayerResult& expected) {
  check_rounded(rig, actual.y, expected.y);
  check_rounded(rig, actual.dx, expected.dx);
  if (!expected.dw.values.empty()) CHECK(relative_error(actual.dw, expected.dw) <= kFull);
  if (!expected.db.values.empty()) CHECK(relative_error(actual.db, expected.db) <= kFull);
}

}  // namespace

TEST_CASE("mixed precision: every output of an op is a value of its type") {
  Random random(31, RandomUse::synthetic);
  const HostTensor a = random_tensor({3, 8, 5, 7}, random), b = random_tensor({3, 8, 5, 7}, random);
  in_low_precision([&](OpRig& rig, OpRig&) {
    const HostTensor y = add(rig, a, b, false, rig.plain(a.shape), false);
    for (const double value : y.values) {
      const float single = static_cast<float>(value),
                  again = rig.context().activation_type() == DType::bf16
                              ? kernels::to_float(kernels::from_float<kernels::BFloat16>(single))
                              : kernels::to_float(kernels::from_float<kernels::Float16>(single));
      REQUIRE(static_cast<double>(again) == value);
    }
    CHECK(relative_error(y, a) > 0.1);
  });
}

TEST_CASE("mixed precision: convolutions and their gradients agree with the rounded reference, in every layout") {
  Random random(32, RandomUse::synthetic);
  struct Case {
    std::int64_t n, in, out, height, width;
    Window window;
    bool bias, relu;
  };
  const Case cases[] = {{2, 1, 8, 9, 7, {3, 1, 0}, true, true},   {3, 3, 5, 7, 5, {3, 2, 1}, false, false},
                        {2, 8, 13, 7, 9, {3, 1, 1}, true, false}, {3, 16, 32, 6, 5, {1, 2, 0}, false, false},
                        {2, 5, 7, 9, 9, {5, 1, 1}, true, true},   {4, 64, 64, 8, 8, {3, 1, 1}, false, false},
                        {5, 36, 20, 5, 6, {3, 2, 1}, true, true}};
  for (const Case& c : cases) {
    const HostTensor x = random_tensor({c.n, c.in, c.height, c.width}, random);
    const HostTensor w = random_tensor({c.out, c.in, c.window.kernel.h, c.window.kernel.h}, random);
    const HostTensor b = random_tensor({c.out}, random),
                     dy = random_tensor(window_output(x.shape, c.out, c.window), random);
    const HostTensor* const bias = c.bias ? &b : nullptr;
    in_low_precision([&](OpRig& rig, OpRig& oracle) {
      const LayerResult expected = conv2d(oracle, x, w, bias, dy, c.window, c.relu, Layouts::plain);
      for (const Layouts layouts : kLayouts) {
        INFO("x " << to_string(x.shape) << " w " << to_string(w.shape) << " layouts " << to_string(layouts));
        check_layer(rig, conv2d(rig, x, w, bias, dy, c.window, c.relu, layouts), expected);
      }
    });
  }
}

TEST_CASE("mixed precision: linear layers and their gradients agree with the rounded reference, in every layout") {
  Random random(33, RandomUse::synthetic);
  for (const Shape& shape : {Shape{1, 7}, Shape{5, 64}, Shape{3, 12, 5, 3}, Shape{9, 300}})
    for (const std::int64_t outputs : {1, 10, 36}) {
      const HostTensor x = random_tensor(shape, random),
                       w = random_tensor({outputs, shape.without_first().numel()}, random);
      const HostTensor b = random_tensor({outputs}, random), dy = random_tensor({shape[0], outputs}, random);
      const bool relu = outputs == 36;
      in_low_precision([&](OpRig& rig, OpRig& oracle) {
        const LayerResult expected = linear(oracle, x, w, &b, dy, relu, Layouts::plain);
        for (const Layouts layouts : kLayouts) {
          INFO("x " << to_string(x.shape) << " outputs " << outputs << " layouts " << to_string(layouts));
          check_layer(rig, linear(rig, x, w, &b, dy, relu, layouts), expected);
        }
      });
    }
}

TEST_CASE("mixed precision: ReLU, additions and dropout agree with the rounded reference, also in place") {
  Random random(34, RandomUse::synthetic);
  const StepInputs inputs{.seed = 0xfedcba9876543210, .step = 5};
  for (const Shape& shape : {Shape{3, 13}, Shape{7, 128}, Shape{3, 5, 7, 5}, Shape{2, 32, 5, 7}}) {
    const HostTensor a = random_tensor(shape, random), b = random_tensor(shape, random);
    in_low_precision([&](OpRig& rig, OpRig& oracle) {
      std::vector<kernels::Layout> layouts{rig.plain(shape)};
      if (shape.rank() == 4) layouts.push_back(rig.preferred(shape));
      const kernels::Layout plain = oracle.plain(shape);
      const HostTensor y = relu_forward(oracle, a, plain, false), dx = relu_backward(oracle, b, y, plain, false);
      for (const kernels::Layout& layout : layouts)
        for (const bool in_place : {false, true}) {
          INFO(to_string(shape) << " " << layout.name << (in_place ? " in place" : ""));
          CHECK(relu_forward(rig, a, layout, in_place).values == y.values);
          CHECK(relu_backward(rig, b, y, layout, in_place).values == dx.values);
          for (const bool relu : {false, true})
            CHECK(add(rig, a, b, relu, layout, in_place).values == add(oracle, a, b, relu, plain, false).values);
          check_rounded(rig, dropout(rig, a, {0.3f, 4}, keys_of(shape[0]), inputs, layout, in_place),
                        dropout(oracle, a, {0.3f, 4}, keys_of(shape[0]), inputs, plain, false));
        }
    });
  }
}

TEST_CASE("mixed precision: functions and their derivatives agree with the rounded reference, also in place") {
  Random random(35, RandomUse::synthetic);
  for (const Shape& shape : {Shape{3, 13}, Shape{3, 5, 7, 5}, Shape{2, 32, 5, 7}}) {
    const HostTensor x = random_tensor(shape, random), dy = random_tensor(shape, random);
    for (const Function function : {Function(Sigmoid{}), Function(Silu{}), Function(Gelu{}), Function(LeakyRelu{})})
      in_low_precision([&](OpRig& rig, OpRig& oracle) {
        std::vector<kernels::Layout> layouts{rig.plain(shape)};
        if (shape.rank() == 4) layouts.push_back(rig.preferred(shape));
        const kernels::Layout plain = oracle.plain(shape);
        for (const kernels::Layout& layout : layouts)
          for (const bool in_place : {false, true}) {
            INFO(name_of(function) << " " << to_string(shape) << " " << layout.name << (in_place ? " in place" : ""));
            check_rounded(rig, function_forward(rig, x, function, layout, in_place),
                          function_forward(oracle, x, function, plain, false));
            check_rounded(rig, function_backward(rig, dy, x, function, layout, in_place),
                          function_backward(oracle, dy, x, function, plain, false));
          }
      });
  }
}

TEST_CASE("mixed precision: float16 overflows to infinity, bfloat16 does not, and both keep NaN") {
  HostTensor x = zeros({1, 8, 1, 2});
  x.values[0] = 60000, x.values[1] = -60000, x.values[2] = NAN;
  in_low_precision([&](OpRig& rig, OpRig&) {
    const HostTensor y = add(rig, x, x, false, rig.plain(x.shape), false);
    const bool half = rig.context().activation_type() == DType::f16;
    CHECK(std::isinf(y.values[0]) == half);
    CHECK((y.values[1] < 0 && std::isinf(y.values[1]) == half));
    CHECK(std::isnan(y.values[2]));
    CHECK(y.values[3] == 0);
  });
}

TEST_CASE("mixed precision: pools agree with the rounded reference, in every layout") {
  Random random(35, RandomUse::synthetic);
  const StepInputs inputs{.seed = 0x123456789abcdef0, .step = 7};
  for (const Window& window : {Window{2, 2, 0}, Window{3, 2, 1}, Window{3, 1, 1}})
    for (const std::int64_t channels : {1, 5, 8, 32}) {
      const HostTensor x = random_tensor({3, channels, 7, 6}, random);
      const HostTensor dy = random_tensor(window_output(x.shape, channels, window), random);
      const HostTensor pixel = random_tensor({3, channels, 1, 1}, random);
      const bool relu = channels != 5;
      PoolOptions options{.window = window, .relu = relu};
      if (channels == 8) options.dropout = kernels::DropoutSpec{0.25f, 3};
      in_low_precision([&](OpRig& rig, OpRig& oracle) {
        const auto max = max_pool2d(oracle, x, dy, options, keys_of(3), inputs, Layouts::plain);
        const auto mean = avg_pool2d(oracle, x, dy, &window, Layouts::plain);
        const auto global = avg_pool2d(oracle, x, pixel, nullptr, Layouts::plain);
        for (const Layouts layouts : kLayouts) {
          INFO(channels << " channels, stride " << window.stride.h << " layouts " << to_string(layouts));
          check_layer(rig, max_pool2d(rig, x, dy, options, keys_of(3), inputs, layouts), max);
          check_layer(rig, avg_pool2d(rig, x, dy, &window, layouts), mean);
          check_layer(rig, avg_pool2d(rig, x, pixel, nullptr, layouts), global);
        }
      });
    }
}

TEST_CASE("mixed precision: products are rounded once, and copied channels are exact") {
  Random random(38, RandomUse::synthetic);
  const Shape shape{7, 20, 6, 5};
  const HostTensor x = random_tensor(shape, random), dy = random_tensor(shape, random);
  for (const Shape& factors : {shape, Shape{7, 20, 1, 1}, Shape{7, 1, 6, 5}}) {
    const HostTensor s = random_tensor(factors, random);
    in_low_precision([&](OpRig& rig, OpRig& oracle) {
      const Products expected = multiply(oracle, x, s, dy, oracle.plain(shape), false);
      for (const kernels::Layout& layout : {rig.plain(shape), rig.preferred(shape)}) {
        INFO(layout.name << " by " << to_string(factors));
        const Products actual = multiply(rig, x, s, dy, layout, true);
        check_rounded(rig, actual.y, expected.y);
        check_rounded(rig, actual.dx, expected.dx);
        check_rounded(rig, actual.ds, expected.ds);
      }
    });
  }
  const HostTensor before = random_tensor({7, 31, 6, 5}, random);
  in_low_precision([&](OpRig& rig, OpRig& oracle) {
    const HostTensor expected = copy_channels(oracle, x, before, {3, 14, 17}, {}, {});
    for (const kernels::Layout& layout : {rig.plain(shape), rig.preferred(shape)})
      CHECK(copy_channels(rig, x, before, {3, 14, 17}, layout, {}).values == expected.values);
  });
}

TEST_CASE("mixed precision: upsampling, PReLU and softmax agree with the rounded reference") {
  using kernels::Channelwise;
  using kernels::Resampling;
  Random random(39, RandomUse::synthetic);
  for (const Shape& shape : {Shape{3, 5, 7, 5}, Shape{2, 32, 5, 7}, Shape{3, 13}}) {
    const HostTensor x = random_tensor(shape, random), dy = random_tensor(shape, random),
                     w = random_tensor({shape[1]}, random), larger = random_tensor({shape[0], shape[1], 9, 12}, random);
    in_low_precision([&](OpRig& rig, OpRig& oracle) {
      const kernels::Layout plain = oracle.plain(shape);
      for (const kernels::Layout& layout : layouts_of(rig, shape)) {
        INFO(to_string(shape) << " " << layout.name);
        check_layer(rig, channelwise(rig, x, w, dy, Channelwise::prelu, layout, true),
                    channelwise(oracle, x, w, dy, Channelwise::prelu, plain, false));
        const LayerResult actual = softmax(rig, x, dy, layout, true), expected = softmax(oracle, x, dy, plain, false);
        check_rounded(rig, actual.y, expected.y);
        CHECK(relative_error(actual.dx, expected.dx) <= 1e-3);  // a y may be rounded to its neighbour
      }
      if (shape.rank() != 4) return;
      for (const Resampling::Mode mode : {Resampling::Mode::nearest, Resampling::Mode::bilinear})
        for (const Layouts layouts : kLayouts)
          check_layer(rig, resample(rig, x, larger, {mode}, layouts),
                      resample(oracle, x, larger, {mode}, Layouts::plain));
    });
  }
}

TEST_CASE("mixed precision: group and layer normalisation have exact statistics and round their outputs") {
  Random random(37, RandomUse::synthetic);
  for (const Shape& shape : {Shape{7, 6, 3, 5}, Shape{6, 8, 5, 4}, Shape{5, 32, 4, 3}})
    for (const std::int64_t groups : {std::int64_t{1}, std::int64_t{2}, shape[1], kernels::kEachPixel}) {
      const NormCase values = random_norm(shape, false, false, false, random);
      const GroupNormCase norm{
          .x = values.x, .weight = values.weight, .bias = values.bias, .dy = values.dy, .groups = groups};
      in_low_precision([&](OpRig& rig, OpRig& oracle) {
        const GroupNormResult expected = group_norm(oracle, norm, false);
        for (const bool preferred : {false, true}) {
          INFO(to_string(shape) << " groups " << groups << " preferred " << preferred);
          const GroupNormResult actual = group_norm(rig, norm, preferred);
          const Shape stats{2 * shape[0] * kernels::groups_of(shape, groups)}, channels{shape[1]};
          CHECK(relative_error({stats, actual.stats}, {stats, expected.stats}) <= kFull);
          check_rounded(rig, actual.y, expected.y);
          check_rounded(rig, actual.dx, expected.dx);
          CHECK(relative_error(actual.dweight, expected.dweight) <= kFull);
          CHECK(relative_error(actual.dbias, expected.dbias) <= kFull);
        }
      });
    }
}

TEST_CASE("mixed precision: batch normalisation has exact statistics and rounds its outputs") {
  Random random(36, RandomUse::synthetic);
  for (const Shape& shape : {Shape{7, 5, 3, 5}, Shape{6, 8, 5, 4}, Shape{5, 32, 4, 3}})
    for (const bool relu : {false, true})
      for (const bool add : {false, true}) {
        const NormCase norm = random_norm(shape, relu, add, add, random);
        in_low_precision([&](OpRig& rig, OpRig& oracle) {
          const NormResult expected = batch_norm(oracle, norm, {shape[0] - 2, 2}, false);
          for (const bool preferred : {false, true}) {
            INFO(to_string(shape) << " relu " << relu << " add " << add << " preferred " << preferred);
            const NormResult actual = batch_norm(rig, norm, {shape[0] - 2, 2}, preferred);
            const Shape channels{shape[1]};
            CHECK(relative_error({channels, actual.mean}, {channels, expected.mean}) <= kFull);
            CHECK(relative_error({channels, actual.variance}, {channels, expected.variance}) <= kFull);
            check_rounded(rig, actual.y, expected.y);
            check_rounded(rig, actual.dz, expected.dz);
            check_rounded(rig, actual.dx, expected.dx);
            // A value of y that is rounded to its neighbour may pass or block its gradient: at most one here.
            CHECK(relative_error(actual.dweight, expected.dweight) <= 1e-3);
            CHECK(relative_error(actual.dbias, expected.dbias) <= 1e-3);
          }
        });
      }
}

TEST_CASE("mixed precision: Reorder casts in every layout and back without loss") {
  Random random(37, RandomUse::synthetic);
  for (const std::int64_t channels : {1, 3, 13, 32}) {
    const HostTensor x = scaled(random_tensor({3, channels, 5, 7}, random), 300);
    in_low_precision([&](OpRig& rig, OpRig& oracle) {
      const kernels::TensorDesc plain = rig.desc(x.shape, rig.plain(x.shape)),
                                last = rig.desc(x.shape, rig.preferred(x.shape));
      const HostTensor expected = oracle.download(oracle.upload(x, oracle.desc(x.shape, oracle.plain(x.shape))));
      CHECK(relative_error(expected, x) > 1e-5);  // it rounds
      for (const kernels::TensorDesc& desc : {plain, last}) {
        INFO(desc.layout.name);
        const DeviceTensor there = rig.upload(x, desc);
        CHECK(rig.download(there).values == expected.values);
        CHECK(rig.download(rig.relaid(there, plain)).values == expected.values);
        CHECK(rig.download(rig.relaid(there, last)).values == expected.values);
        const kernels::TensorDesc full = rig.full(x.shape, rig.context().with_type(desc, rig.context().compute_type()));
        CHECK(rig.download(rig.relaid(there, full)).values == expected.values);
      }
    });
  }
}

TEST_CASE("mixed precision: the update writes the weights' copy unless it is skipped") {
  Random random(38, RandomUse::synthetic);
  const Sgd sgd{.lr = 0.3f, .momentum = 0.9f, .weight_decay = 5e-2f};
  for (const std::int64_t count : {1, 13, 4099})
    for (const bool momentum : {false, true}) {
      const HostTensor w = random_tensor({count}, random), m = random_tensor({count}, random),
                       g = random_tensor({count}, random);
      in_low_precision([&](OpRig& rig, OpRig& oracle) {
        HostTensor expected_w = w, expected_m = m, actual_w = w, actual_m = m;
        const HostTensor expected = sgd_update(oracle, expected_w, g, momentum ? &expected_m : nullptr, sgd, {});
        const HostTensor copy = sgd_update(rig, actual_w, g, momentum ? &actual_m : nullptr, sgd, {});
        check_rounded(rig, copy, expected);
        CHECK(relative_error(actual_w, expected_w) <= kFull);
        CHECK(relative_error(copy, actual_w) <= 0x1p-8);
        kernels::StepResults skipping;
        skipping.skip = 1;
        const HostTensor untouched = sgd_update(rig, actual_w, g, momentum ? &actual_m : nullptr, sgd, skipping);
        CHECK(std::all_of(untouched.values.begin(), untouched.values.end(), [](double v) { return std::isnan(v); }));
      });
    }
}

TEST_CASE("mixed precision: the loss scale multiplies the loss's gradient, not the loss") {
  Random random(39, RandomUse::synthetic);
  for (const std::int64_t batch : {5, 200}) {
    const HostTensor logits = random_tensor({batch, 10}, random);
    const std::vector<std::int32_t> labels(static_cast<std::size_t>(batch), 3);
    const StepInputs inputs{.loss_scale = 0.125f, .label_smoothing = 0.1f};
    in_low_precision([&](OpRig& rig, OpRig&) {
      if (rig.kind() == DeviceKind::cpu) return;  // it has no float16, for which losses are scaled
      const LossResult plain = softmax_cross_entropy(rig, logits, labels, inputs);
      const LossResult large = softmax_cross_entropy(rig, logits, labels, inputs, true, {}, 65536.0f);
      CHECK(relative_error(large.dlogits, scaled(plain.dlogits, 65536)) <= 1e-7);
      CHECK(large.results.loss_sum == plain.results.loss_sum);
    });
  }
}

TEST_CASE("mixed precision: norm and clipping use the unscaled gradient, and an overflow halves the scale") {
  const double infinity = std::numeric_limits<double>::infinity();
  const kernels::LossScaling scaling{.interval = 3};
  in_low_precision([&](OpRig& rig, OpRig&) {
    if (rig.kind() == DeviceKind::cpu) return;
    kernels::LossScaler scaler{.scale = 1024};
    const double scaled_sum = 25.0 * 1024 * 1024;  // of a gradient of norm 5
    const auto good = [&](float max_norm) {
      return grad_norm_finish(rig, {scaled_sum / 2, scaled_sum / 2}, {.max_norm = max_norm}, scaling, scaler);
    };
    kernels::StepResults results = good(0);
    CHECK(results.grad_norm == Approx(5));
    CHECK(results.clip == 1.0f / 1024);
    CHECK(results.skip == 0);
    results = good(1);
    CHECK(results.clip * 1024.0f == Approx(0.2).epsilon(1e-6));
    CHECK(scaler.scale == 1024);
    CHECK(scaler.good_steps == 2);
    for (const double bad : {infinity, static_cast<double>(NAN)}) {
      const float before = scaler.scale;
      results = grad_norm_finish(rig, {1, bad}, {}, scaling, scaler);
      CHECK(results.skip == 1);
      CHECK(results.skipped_steps == 1);
      CHECK(results.grad_nonfinite == 0);
      CHECK(scaler.scale == before / 2);
      CHECK(scaler.last_scale == before);
      CHECK(scaler.good_steps == 0);
    }
    for (int i = 0; i < 2; ++i) good(0);
    CHECK(scaler.scale == 256);
    good(0);  // the third in a row
    CHECK(scaler.scale == 512);
    CHECK(scaler.last_scale == 256);
    CHECK(scaler.good_steps == 0);
    scaler = {.scale = 0x1p127f, .good_steps = 2};
    good(0);
    CHECK(scaler.scale == 0x1p127f);  // not infinite
    scaler = {.scale = 0x1p-126f};
    grad_norm_finish(rig, {infinity}, {}, scaling, scaler);
    CHECK(scaler.scale == 0x1p-126f);  // not zero
  });
}

TEST_CASE("mixed precision is rejected on devices without it and for types that do not match") {
  CHECK_THROWS_AS(OpRig(DeviceKind::cpu, 1, DType::f16), Error);
  OpRig cpu(DeviceKind::cpu);
  CHECK_THROWS_AS(cpu.context().make_op(kernels::ReluForward{{Shape{2, 3}, DType::bf16, {}}}), Error);
  CHECK_THROWS_AS(cpu.context().make_op(kernels::OptimizerUpdate{.count = 1, .copy = DType::f16}), Error);
  CHECK_THROWS_AS(cpu.context().make_op(kernels::SoftmaxCrossEntropy{.batch = 1, .classes = 2, .scaled = true}), Error);
  CHECK_THROWS_AS(cpu.context().make_op(kernels::GradNormFinish{.blocks = 1, .scaling = kernels::LossScaling{}}),
                  Error);
  const EmulatedBfloat16 emulated;
  for (const DeviceKind kind : tested_kinds()) {
    if (kind == DeviceKind::reference) continue;
    OpRig rig(kind, 1, DType::bf16);
    const Shape x{2, 4}, w{3, 4}, y{2, 3};
    const auto refused = [&](const kernels::OpDesc& desc) { CHECK_THROWS_AS(rig.context().make_op(desc), Error); };
    refused(kernels::LinearForward{{x, DType::bf16, {}}, {w, DType::f16, {}}, {y, DType::bf16, {}}});
    refused(kernels::LinearForward{{x, DType::f32, {}}, {w, DType::bf16, {}}, {y, DType::bf16, {}}});
    refused(kernels::LinearBackwardWeights{{x, DType::bf16, {}}, {y, DType::bf16, {}}, {w, DType::bf16, {}}});
    refused(kernels::Reorder{rig.desc(x), {x, DType::f16, {}}});
    refused(kernels::OptimizerUpdate{.count = 1, .copy = DType::f64});
  }
}
