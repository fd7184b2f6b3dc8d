#include <cmath>

#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Window;

// Sums of up to 10^4 products of random numbers in float32. Errors grow with the square root of the count, to about
// 1e-6 of the norm.
constexpr double kConvTolerance = 1e-5;

struct ConvCase {
  std::int64_t n, in, out, height, width;
  Window window;
  bool bias, relu;
  std::int64_t groups = 1;
};

void check_conv(const ConvCase& c, Random& random) {
  const Shape x_shape{c.n, c.in, c.height, c.width},
      w_shape{c.out, c.in / c.groups, c.window.kernel.h, c.window.kernel.w};
  const HostTensor x = random_tensor(x_shape, random), w = random_tensor(w_shape, random);
  const HostTensor b = random_tensor({c.out}, random);
  const HostTensor dy = random_tensor(window_output(x_shape, c.out, c.window), random);
  const HostTensor* bias = c.bias ? &b : nullptr;

  OpRig oracle(DeviceKind::reference);
  const LayerResult expected = conv2d(oracle, x, w, bias, dy, c.window, c.relu, Layouts::plain);
  for (const DeviceKind kind : tested_kinds())
    for (const Layouts layouts : kLayouts) {
      INFO(to_string(Device{kind, 0}) << " layouts " << to_string(layouts) << " x " << to_string(x_shape) << " w "
                                      << to_string(w_shape) << " stride " << to_string(c.window.stride) << " padding "
                                      << to_string(c.window.padding) << " dilation " << to_string(c.window.dilation)
                                      << " bias " << c.bias << " relu " << c.relu);
      OpRig rig(kind);
      const LayerResult actual = conv2d(rig, x, w, bias, dy, c.window, c.relu, layouts);
      CHECK(relative_error(actual.y, expected.y) <= kConvTolerance);
      CHECK(relative_error(actual.dx, expected.dx) <= kConvTolerance);
      CHECK(relative_error(actual.dw, expected.dw) <= kConvTolerance);
      if (bias) CHECK(relative_error(actual.db, expected.db) <= kConvTolerance);
    }
}

}  // namespace

TEST_CASE("convolutions of random odd shapes agree with the reference, forward and backward, in every layout") {
  Random random(1, RandomUse::synthetic);
  const auto pick = [&](std::initializer_list<std::int64_t> from) {
    return from.begin()[random.below(static_cast<std::uint32_t>(from.size()))];
  };
  for (int i = 0; i < 24; ++i) {
    ConvCase c{.n = pick({1, 3, 7}),
               .in = pick({1, 3, 5, 8, 13, 32}),
               .out = pick({1, 3, 5, 8, 13, 32}),
               .height = pick({5, 7, 9, 11}),
               .width = pick({5, 7, 9, 13})};
    c.window = {.kernel = static_cast<int>(pick({1, 3, 5, 7})),
                .stride = static_cast<int>(pick({1, 2})),
                .padding = static_cast<int>(pick({0, 1}))};
    if (c.window.kernel.h == 1) c.window.padding = 0;
    if (c.window.kernel.h == 7) c.window.padding = 1;  // fits an edge of 5
    c.bias = random.below(4) != 0;
    c.relu = random.below(2) != 0;
    check_conv(c, random);
  }
}

TEST_CASE("the convolutions of mnist_convnet agree with the reference") {
  Random random(2, RandomUse::synthetic);
  check_conv({2, 1, 32, 28, 28, {3, 1, 0}, true, true}, random);
  check_conv({2, 32, 64, 26, 26, {3, 1, 0}, true, true}, random);
}

TEST_CASE("convolutions at the edges agree with the reference") {
  Random random(3, RandomUse::synthetic);
  check_conv({1, 1, 1, 1, 1, {1, 1, 0}, true, false}, random);
  check_conv({1, 3, 5, 1, 1, {3, 1, 1}, true, true}, random);
  check_conv({3, 5, 8, 3, 5, {3, 1, 0}, false, true}, random);
  check_conv({3, 8, 13, 6, 8, {3, 2, 0}, true, true}, random);
  check_conv({2, 13, 3, 7, 4, {1, 2, 0}, true, false}, random);
}

// Shapes for which the CPU uses Winograd if oneDNN supports it: partly filled tiles (channels and rows), and batches
// that do not divide evenly among threads.
TEST_CASE("convolutions of many channels agree with the reference") {
  Random random(4, RandomUse::synthetic);
  check_conv({3, 32, 48, 14, 18, {3, 1, 1}, true, true}, random);
  check_conv({5, 40, 33, 16, 15, {3, 1, 1}, false, false}, random);
  check_conv({2, 64, 64, 22, 22, {3, 1, 0}, true, false}, random);
  check_conv({33, 64, 48, 4, 4, {3, 1, 1}, false, true}, random);
}

TEST_CASE("convolutions in groups, dilated, and with different sizes across and down agree with the reference") {
  Random random(5, RandomUse::synthetic);
  const auto pick = [&](std::initializer_list<int> from) {
    return from.begin()[random.below(static_cast<std::uint32_t>(from.size()))];
  };
  for (int i = 0; i < 24; ++i) {
    ConvCase c{.n = pick({1, 3}), .height = pick({9, 11, 14}), .width = pick({9, 12, 13})};
    c.groups = pick({1, 2, 5});
    c.in = c.groups * pick({1, 3, 8}), c.out = c.groups * pick({1, 4, 8});
    c.window = {.kernel = {pick({1, 2, 3}), pick({1, 3, 4})},
                .stride = {pick({1, 2}), pick({1, 2, 3})},
                .padding = {pick({0, 1}), pick({0, 2})},
                .dilation = {pick({1, 2}), pick({1, 2})},
                .more_behind = {pick({0, 1}), pick({0, 1})}};
    c.bias = random.below(2) != 0, c.relu = random.below(2) != 0;
    check_conv(c, random);
  }
}

TEST_CASE("depthwise convolutions of every number of channels agree with the reference") {
  Random random(6, RandomUse::synthetic);
  for (const std::int64_t channels : {2, 7, 8, 16, 24, 33, 96})
    for (const Window& window : {Window{3, 1, 1}, Window{3, 2, 1}, Window{5, 1, 2}, Window{7, 1, 3}})
      check_conv({2, channels, channels, 12, 10, window, window.kernel == 5, window.stride == 2, channels}, random);
  check_conv({2, 8, 24, 9, 9, {3, 1, 1}, true, true, 8}, random);  // three outputs for each channel
}

// A NaN in the weights makes its output channel NaN. A ReLU that took NaN for a negative number would hide it from an
// evaluation; in training the gradients show it.
TEST_CASE("in evaluation a convolution with its ReLU agrees with the reference, and a NaN passes it") {
  Random random(7, RandomUse::synthetic);
  for (const ConvCase& c : {ConvCase{2, 1, 32, 12, 12, {3, 1, 0}, true, true},
                            {2, 13, 5, 7, 9, {3, 2, 0}, true, true},
                            {2, 16, 24, 9, 17, {3, 2, 0}, true, true},   // nhwc on CPUs with AVX-512
                            {1, 3, 40, 20, 22, {7, 2, 0}, false, true},  // the same
                            {3, 32, 48, 14, 18, {3, 1, 0}, true, true},  // Winograd on CPUs
                            {2, 16, 32, 8, 8, {1, 1, 0}, false, true},
                            {2, 32, 32, 9, 9, {3, 1, 0}, false, true, 32},
                            {2, 8, 16, 9, 9, {3, 1, 0}, true, true, 2}}) {
    const Shape x_shape{c.n, c.in, c.height, c.width}, y_shape = window_output(x_shape, c.out, c.window);
    const HostTensor x = random_tensor(x_shape, random), b = random_tensor({c.out}, random);
    HostTensor w = random_tensor({c.out, c.in / c.groups, c.window.kernel.h, c.window.kernel.w}, random);
    w.values[0] = std::nan("");
    std::vector<double> expected;  // of the reference, which is the first kind
    for (const DeviceKind kind : tested_kinds())
      for (const bool preferred : {false, true}) {
        INFO(to_string(Device{kind, 0}) << " x " << to_string(x_shape) << " groups " << c.groups << " preferred "
                                        << preferred);
        OpRig rig(kind);
        const auto desc = [&](const Shape& shape) {
          return preferred ? rig.desc(shape) : rig.desc(shape, rig.plain(shape));
        };
        const auto op = rig.context().make_op(kernels::Conv2dForward{
            desc(x_shape), desc(w.shape), desc(y_shape), c.window, c.bias, /*relu=*/true, /*training=*/false});
        const DeviceTensor bias = rig.upload(b, rig.plain_full(b.shape)), y = rig.poisoned(op->tensors()[2]);
        rig.run(*op, {rig.upload(x, op->tensors()[0]).data(), rig.upload(w, op->tensors()[1]).data(),
                      c.bias ? bias.data() : nullptr, y.data()});
        const std::vector<double> values = rig.download(y).values;
        const std::int64_t plane = y_shape[2] * y_shape[3];
        if (expected.empty()) expected = values;
        bool some_positive = false;
        for (std::int64_t i = 0; i < y_shape.numel(); ++i) {
          const double value = values[static_cast<std::size_t>(i)];
          if (i / plane % c.out == 0) CHECK(std::isnan(value));
          if (i / plane % c.out != 0) CHECK(value >= -1e-15);
          if (i / plane % c.out != 0) CHECK(std::abs(value - expected[static_cast<std::size_t>(i)]) <= 1e-4);
          some_positive |= value > 0.1;
        }
        CHECK(some_positive);
      }
  }
}
