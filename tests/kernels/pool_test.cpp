#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::DropoutSpec;
using kernels::StepInputs;
using kernels::Window;

// A maximum is copied. Only dropout's scale rounds.
constexpr double kMaxPoolTolerance = 2e-7;

std::vector<std::int64_t> sample_keys(std::int64_t n) {
  std::vector<std::int64_t> keys;
  for (std::int64_t i = 0; i < n; ++i) keys.push_back((std::int64_t{1} << 33) * i + 17 * i + 3);
  return keys;
}

void check_max_pool(const HostTensor& x, const HostTensor& dy, const PoolOptions& options) {
  const auto keys = sample_keys(x.shape[0]);
  const StepInputs inputs{.seed = 0x123456789abcdef0, .step = 7};
  OpRig oracle(DeviceKind::reference);
  const LayerResult expected = max_pool2d(oracle, x, dy, options, keys, inputs, Layouts::plain);
  for (const DeviceKind kind : tested_kinds())
    for (const Layouts layouts : kLayouts) {
      INFO(to_string(Device{kind, 0}) << " layouts " << to_string(layouts) << " x " << to_string(x.shape) << " kernel "
                                      << options.window.kernel.h << " stride " << options.window.stride.h << " padding "
                                      << options.window.padding.h << " relu " << options.relu << " training "
                                      << options.training << " dropout " << options.dropout.has_value());
      OpRig rig(kind);
      const LayerResult actual = max_pool2d(rig, x, dy, options, keys, inputs, layouts);
      CHECK(relative_error(actual.y, expected.y) <= kMaxPoolTolerance);
      if (options.training) CHECK(relative_error(actual.dx, expected.dx) <= kMaxPoolTolerance);
    }
}

void check_random(const Shape& shape, const PoolOptions& options, Random& random) {
  check_max_pool(random_tensor(shape, random), random_tensor(window_output(shape, shape[1], options.window), random),
                 options);
}

}  // namespace

TEST_CASE("max-pools agree with the reference, alone and with fused ReLU and dropout, in every layout") {
  Random random(7, RandomUse::synthetic);
  const Window windows[] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {2, 1, 0}, {5, 2, 2}, {1, 1, 0}};
  const std::int64_t channels[] = {1, 3, 5, 8, 13, 32};
  int turn = 0;
  for (const Window& window : windows)
    for (const bool relu : {false, true})
      for (const bool dropout : {false, true}) {
        const std::int64_t c = channels[turn++ % 6];
        const Shape shape{turn % 3 == 0 ? 7 : turn % 3, c, 5 + turn % 4, 7 - turn % 2};
        check_random(
            shape,
            {.window = window, .relu = relu, .dropout = dropout ? std::optional(DropoutSpec{0.25f, 3}) : std::nullopt},
            random);
      }
}

TEST_CASE("max-pools with windows of any shape, dilated and in ceil mode, agree with the reference") {
  Random random(35, RandomUse::synthetic);
  const Window windows[] = {{{2, 3}, {2, 1}, {0, 1}},
                            {3, 2, 1, 2},
                            {{3, 2}, {1, 2}, 0, {2, 3}},
                            {2, 2, 0, 1, {1, 0}},  // ceil mode: one more row
                            {3, 2, 0, 1, 1},
                            {{5, 2}, 4, {2, 1}, 1, {3, 1}},
                            {2, 3, 1, 2, 1}};
  const std::int64_t channels[] = {1, 3, 8, 13, 32};
  int turn = 0;
  for (const Window& window : windows)
    for (const bool relu : {false, true}) {
      const std::int64_t c = channels[turn++ % 5];
      for (const Shape& shape : {Shape{2, c, 9, 8}, {1, c, 8, 10}})
        check_random(shape, {.window = window, .relu = relu}, random);
    }
}

TEST_CASE("max-pools with one-cell inputs or outputs agree with the reference in every layout") {
  Random random(34, RandomUse::synthetic);
  for (const std::int64_t channels : {1, 2, 8, 13})
    for (const bool relu : {false, true}) {
      check_random({3, channels, 2, 2}, {.window = {2, 2, 0}, .relu = relu}, random);
      check_random({2, channels, 3, 2}, {.window = {3, 2, 1}, .relu = relu}, random);
      check_random({2, channels, 1, 1}, {.window = {2, 1, 1}, .relu = relu}, random);
      check_random({2, channels, 1, 1}, {.window = {1, 1, 0}, .relu = relu}, random);
    }
}

TEST_CASE("in evaluation a max-pool needs no mask and drops nothing") {
  Random random(8, RandomUse::synthetic);
  for (const bool relu : {false, true}) {
    check_random({3, 5, 9, 7}, {.window = {2, 2, 0}, .relu = relu, .training = false, .dropout = DropoutSpec{0.5f, 1}},
                 random);
    check_random({1, 32, 6, 6}, {.window = {3, 2, 1}, .relu = relu, .training = false}, random);
  }
}

TEST_CASE("the first of equal maxima gets the gradient") {
  Random random(9, RandomUse::synthetic);
  HostTensor x = zeros({3, 13, 7, 6});
  for (double& value : x.values) value = static_cast<double>(random.below(3)) - 1;  // ties everywhere
  for (const bool relu : {false, true})
    for (const Window& window : {Window{2, 2, 0}, Window{3, 1, 1}})
      check_max_pool(x, random_tensor(window_output(x.shape, 13, window), random), {.window = window, .relu = relu});
}

TEST_CASE("padding never wins a maximum, not even against negative numbers") {
  Random random(10, RandomUse::synthetic);
  HostTensor x = random_tensor({2, 5, 5, 5}, random);
  for (double& value : x.values) value -= 3;
  const Window window{3, 2, 1};
  OpRig rig(DeviceKind::reference);
  for (const double value :
       max_pool2d(rig, x, zeros({2, 5, 3, 3}), {.window = window}, {}, {}, Layouts::plain).y.values)
    CHECK(value < -1);
  check_max_pool(x, random_tensor({2, 5, 3, 3}, random), {.window = window});
  check_max_pool(x, random_tensor({2, 5, 3, 3}, random), {.window = window, .relu = true});
}

TEST_CASE("the reference's masks number the window cells as ops.h does") {
  OpRig rig(DeviceKind::reference);
  const Shape x_shape{1, 1, 3, 3}, y_shape{1, 1, 2, 2};
  // Windows start at -1 and 1. They contain 1x1, 1x2, 2x1 and 2x2 cells of the image.
  const HostTensor x{x_shape,
                     {9, 2, 1,    //
                      4, -8, -7,  //
                      3, -6, -5}};
  const kernels::MaxPool2dForward desc{.x = rig.desc(x_shape, rig.plain(x_shape)),
                                       .y = rig.desc(y_shape, rig.plain(y_shape)),
                                       .window = {2, 2, 1},
                                       .relu = true};
  std::vector<std::uint8_t> mask(4, 99);
  const auto device_mask = rig.upload_bytes(mask.data(), mask.size());
  const DeviceTensor y = rig.poisoned(desc.y);
  rig.run(*rig.context().make_op(desc),
          {rig.upload(x, desc.x).data(), y.data(), device_mask->data(), nullptr, nullptr});
  rig.download_bytes(mask.data(), *device_mask, mask.size());
  CHECK(rig.download(y).values == std::vector<double>{9, 2, 4, 0});
  CHECK(mask == std::vector<std::uint8_t>{3, 2, 1, 255});
}
