#include <algorithm>
#include <cmath>

#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Window;

constexpr double kAvgPoolTolerance = 1e-6;  // sums of up to 225 cells

// The cells of one side, which may be in the padding.
struct Cells {
  std::int64_t first, end;
  std::int64_t count() const { return end - first; }
};

// By definition: every cell of the window counts, with zeros for padding. Without a window: an adaptive pool.
LayerResult naive_avg_pool(const HostTensor& x, const HostTensor& dy, const Window* window) {
  const std::int64_t h = x.shape[2], w = x.shape[3];
  const auto cells = [&](std::int64_t at, int axis, int HW::*side) -> Cells {
    if (window != nullptr) {
      const std::int64_t first = at * (window->stride.*side) - window->padding.*side;
      return {first, first + window->kernel.*side};
    }
    const double share = static_cast<double>(x.shape[axis]) / static_cast<double>(dy.shape[axis]);
    const auto whole = [](double size) { return static_cast<std::int64_t>(size); };
    return {whole(std::floor(static_cast<double>(at) * share + 1e-9)),
            whole(std::ceil(static_cast<double>(at + 1) * share - 1e-9))};
  };
  LayerResult result;
  result.y = zeros(dy.shape), result.dx = zeros(x.shape);
  for (std::int64_t o = 0; o < dy.shape.numel(); ++o) {
    const std::int64_t plane = o / (dy.shape[2] * dy.shape[3]);
    const Cells rows = cells(o / dy.shape[3] % dy.shape[2], 2, &HW::h), cols = cells(o % dy.shape[3], 3, &HW::w);
    const auto count = static_cast<double>(rows.count() * cols.count());
    for (std::int64_t r = std::max<std::int64_t>(rows.first, 0); r < std::min(rows.end, h); ++r)
      for (std::int64_t c = std::max<std::int64_t>(cols.first, 0); c < std::min(cols.end, w); ++c) {
        const auto at = static_cast<std::size_t>((plane * h + r) * w + c), out = static_cast<std::size_t>(o);
        result.y.values[out] += x.values[at] / count;
        result.dx.values[at] += dy.values[out] / count;
      }
  }
  return result;
}

void check_avg_pool(const HostTensor& x, const HostTensor& dy, const Window* window) {
  const LayerResult expected = naive_avg_pool(x, dy, window);
  for (const DeviceKind kind : tested_kinds())
    for (const Layouts layouts : kLayouts) {
      INFO(to_string(Device{kind, 0}) << " layouts " << to_string(layouts) << " x " << to_string(x.shape) << " y "
                                      << to_string(dy.shape));
      OpRig rig(kind);
      const LayerResult actual = avg_pool2d(rig, x, dy, window, layouts);
      CHECK(relative_error(actual.y, expected.y) <= kAvgPoolTolerance);
      CHECK(relative_error(actual.dx, expected.dx) <= kAvgPoolTolerance);
    }
}

void check_window(const Shape& x, const Window& window, Random& random) {
  check_avg_pool(random_tensor(x, random), random_tensor(window_output(x, x[1], window), random), &window);
}
void check_adaptive(const Shape& x, HW size, Random& random) {
  check_avg_pool(random_tensor(x, random), random_tensor({x[0], x[1], size.h, size.w}, random), nullptr);
}

}  // namespace

TEST_CASE("average pools are means over their windows with padding, forward and backward, in every layout") {
  Random random(61, RandomUse::synthetic);
  const std::int64_t channels[] = {1, 3, 16, 20, 32};
  int turn = 0;
  for (const Window& window :
       {Window{2, 2, 0}, Window{3, 2, 1}, Window{3, 1, 1}, Window{2, 1, 0}, Window{4, 4, 2}, Window{1, 2, 0},
        Window{8, 8, 0}, Window{{2, 3}, {2, 1}, {0, 1}}, Window{{1, 4}, 2, {0, 2}}})
    for (int i = 0; i < 2; ++i, ++turn)
      check_window({1 + turn % 3, channels[turn % 5], 8 + turn % 3, 9 - turn % 2}, window, random);
}

TEST_CASE("a global average pool is the mean over an image of any shape") {
  Random random(62, RandomUse::synthetic);
  for (const Shape& x :
       {Shape{3, 64, 4, 4}, {1, 20, 3, 5}, {2, 1, 7, 2}, {2, 33, 1, 1}, {2, 16, 15, 15}, {1, 48, 20, 1}})
    check_adaptive(x, 1, random);
}

TEST_CASE("an adaptive average pool has the mean of each cell of a grid, which may be finer than the image") {
  Random random(63, RandomUse::synthetic);
  const HW sizes[] = {3, {2, 3}, 7, {1, 4}, {5, 1}};
  const std::int64_t channels[] = {1, 3, 8, 20, 32};
  int turn = 0;
  for (const HW& size : sizes)
    for (const HW& image : {HW{7, 5}, HW{4, 9}, HW{1, 1}, HW{3, 3}})
      check_adaptive({1 + turn % 3, channels[turn++ % 5], image.h, image.w}, size, random);
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
