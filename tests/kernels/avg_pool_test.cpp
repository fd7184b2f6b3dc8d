#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Window;

constexpr double kAvgPoolTolerance = 1e-6;  // sums of up to 225 cells

// By definition: every cell of the window counts, with zeros for padding.
LayerResult naive_avg_pool(const HostTensor& x, const HostTensor& dy, const Window* window) {
  const std::int64_t h = x.shape[2], w = x.shape[3];
  const std::int64_t rows = window ? window->kernel.h : h, cols = window ? window->kernel.h : w;
  const std::int64_t stride = window ? window->stride.h : 1, padding = window ? window->padding.h : 0;
  LayerResult result;
  result.y = zeros(dy.shape), result.dx = zeros(x.shape);
  for (std::int64_t o = 0; o < dy.shape.numel(); ++o) {
    const std::int64_t plane = o / (dy.shape[2] * dy.shape[3]);
    const std::int64_t top = o / dy.shape[3] % dy.shape[2] * stride - padding,
                       left = o % dy.shape[3] * stride - padding;
    for (std::int64_t r = std::max<std::int64_t>(top, 0); r < std::min(top + rows, h); ++r)
      for (std::int64_t c = std::max<std::int64_t>(left, 0); c < std::min(left + cols, w); ++c) {
        const auto at = static_cast<std::size_t>((plane * h + r) * w + c), out = static_cast<std::size_t>(o);
        result.y.values[out] += x.values[at] / static_cast<double>(rows * cols);
        result.dx.values[at] += dy.values[out] / static_cast<double>(rows * cols);
      }
  }
  return result;
}

void check_avg_pool(const Shape& x_shape, const Window* window, Random& random) {
  const Shape y_shape = window ? window_output(x_shape, x_shape[1], *window) : Shape{x_shape[0], x_shape[1], 1, 1};
  const HostTensor x = random_tensor(x_shape, random), dy = random_tensor(y_shape, random);
  const LayerResult expected = naive_avg_pool(x, dy, window);
  for (const DeviceKind kind : tested_kinds())
    for (const Layouts layouts : kLayouts) {
      INFO(to_string(Device{kind, 0}) << " layouts " << to_string(layouts) << " x " << to_string(x_shape) << " y "
                                      << to_string(y_shape));
      OpRig rig(kind);
      const LayerResult actual = avg_pool2d(rig, x, dy, window, layouts);
      CHECK(relative_error(actual.y, expected.y) <= kAvgPoolTolerance);
      CHECK(relative_error(actual.dx, expected.dx) <= kAvgPoolTolerance);
    }
}

}  // namespace

TEST_CASE("average pools are means over their windows with padding, forward and backward, in every layout") {
  Random random(61, RandomUse::synthetic);
  const std::int64_t channels[] = {1, 3, 16, 20, 32};
  int turn = 0;
  for (const Window& window : {Window{2, 2, 0}, Window{3, 2, 1}, Window{3, 1, 1}, Window{2, 1, 0}, Window{4, 4, 2},
                               Window{1, 2, 0}, Window{8, 8, 0}})
    for (int i = 0; i < 2; ++i, ++turn)
      check_avg_pool({1 + turn % 3, channels[turn % 5], 8 + turn % 3, 9 - turn % 2}, &window, random);
}

TEST_CASE("a global average pool is the mean over an image of any shape") {
  Random random(62, RandomUse::synthetic);
  for (const Shape& x :
       {Shape{3, 64, 4, 4}, {1, 20, 3, 5}, {2, 1, 7, 2}, {2, 33, 1, 1}, {2, 16, 15, 15}, {1, 48, 20, 1}})
    check_avg_pool(x, nullptr, random);
}

TEST_CASE("the output of a global average pool is row-major if its blocks of channels are contiguous") {
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    const Shape x{3, 64, 4, 4}, y{3, 64, 1, 1};
    const auto op =
        rig.context().make_op(kernels::AvgPool2dForward{rig.desc(x, rig.preferred(x)), rig.desc(y), {}, true});
    CHECK(op->tensors()[1].layout == rig.plain(y));
  }
}
