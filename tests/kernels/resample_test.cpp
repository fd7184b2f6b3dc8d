// Resampling and zero padding against their definitions in double.
#include <algorithm>
#include <cmath>

#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Resampling;

constexpr double kResampleTolerance = 1e-6;  // sums of a few products

// The share of input cell `cell` in output cell `at`, one axis.
double share_of(const Resampling& how, std::int64_t at, std::int64_t cell, std::int64_t input, std::int64_t output,
                int shift) {
  const auto size = [](std::int64_t n) { return static_cast<double>(n); };
  const double scale = how.scale > 0 ? how.scale : size(output) / size(input);
  if (how.mode == Resampling::Mode::shifted) return at - shift == cell ? 1 : 0;
  if (how.mode == Resampling::Mode::nearest)
    return std::min(std::floor(size(at) / scale + 1e-6), size(input - 1)) == size(cell) ? 1 : 0;
  double place = (size(at) + 0.5) / scale - 0.5;
  if (how.align_corners) place = output > 1 ? size(at) * size(input - 1) / size(output - 1) : 0;
  return std::max(0.0, 1 - std::abs(std::clamp(place, 0.0, size(input - 1)) - size(cell)));
}

LayerResult naive_resample(const HostTensor& x, const HostTensor& dy, const Resampling& how) {
  const std::int64_t h = x.shape[2], w = x.shape[3], out_h = dy.shape[2], out_w = dy.shape[3];
  LayerResult result;
  result.y = zeros(dy.shape), result.dx = zeros(x.shape);
  for (std::int64_t o = 0; o < dy.shape.numel(); ++o)
    for (std::int64_t cell = 0; cell < h * w; ++cell) {
      const double share = share_of(how, o / out_w % out_h, cell / w, h, out_h, how.shift.h) *
                           share_of(how, o % out_w, cell % w, w, out_w, how.shift.w);
      const auto at = static_cast<std::size_t>(o / (out_h * out_w) * h * w + cell), out = static_cast<std::size_t>(o);
      result.y.values[out] += x.values[at] * share;
      result.dx.values[at] += dy.values[out] * share;
    }
  return result;
}

void check_resample(const Shape& x_shape, HW size, const Resampling& how, Random& random) {
  const HostTensor x = random_tensor(x_shape, random),
                   dy = random_tensor({x_shape[0], x_shape[1], size.h, size.w}, random);
  const LayerResult expected = naive_resample(x, dy, how);
  for (const DeviceKind kind : tested_kinds())
    for (const int threads : {1, 3})
      for (const Layouts layouts : kLayouts) {
        INFO(to_string(Device{kind, 0}) << " layouts " << to_string(layouts) << " x " << to_string(x.shape) << " y "
                                        << to_string(dy.shape) << " mode " << static_cast<int>(how.mode)
                                        << (how.align_corners ? ", aligned" : "") << " scale " << how.scale);
        OpRig rig(kind, threads);
        const LayerResult actual = resample(rig, x, dy, how, layouts);
        CHECK(relative_error(actual.y, expected.y) <= kResampleTolerance);
        CHECK(relative_error(actual.dx, expected.dx) <= kResampleTolerance);
      }
}

}  // namespace

TEST_CASE("upsampling reads the nearest cell, or the two nearest in each direction by their distance") {
  Random random(91, RandomUse::synthetic);
  const std::int64_t channels[] = {1, 3, 16, 20, 32};
  int turn = 0;
  for (const Resampling& how : {Resampling{Resampling::Mode::nearest}, Resampling{Resampling::Mode::bilinear},
                                Resampling{Resampling::Mode::bilinear, true}})
    for (const auto& [image, size] : {std::pair<HW, HW>{{4, 5}, {8, 10}},
                                      {{3, 4}, {7, 13}},
                                      {{9, 7}, {4, 3}},
                                      {{1, 6}, {5, 1}},
                                      {{5, 5}, {5, 5}},
                                      {{4, 3}, {1, 1}},
                                      {{1, 1}, {2, 3}}})
      check_resample({1 + turn % 3, channels[turn++ % 5], image.h, image.w}, size, how, random);
}

TEST_CASE("a scale that the sizes do not have exactly is the distance of the cells") {
  Random random(92, RandomUse::synthetic);
  for (const Resampling::Mode mode : {Resampling::Mode::nearest, Resampling::Mode::bilinear}) {
    check_resample({2, 5, 5, 7}, {7, 10}, {mode, false, 1.5}, random);
    check_resample({2, 16, 10, 9}, {3, 2}, {mode, false, 0.3}, random);
  }
}

TEST_CASE("zero padding shifts an image, and cuts off what is less than none") {
  Random random(93, RandomUse::synthetic);
  const auto shifted = [](int top, int left) {
    return Resampling{.mode = Resampling::Mode::shifted, .shift = {top, left}};
  };
  check_resample({2, 3, 4, 5}, {7, 9}, shifted(1, 3), random);
  check_resample({2, 16, 4, 5}, {3, 9}, shifted(-1, 2), random);
  check_resample({1, 20, 6, 6}, {2, 3}, shifted(-2, -3), random);
  check_resample({3, 32, 2, 2}, {6, 2}, shifted(4, 0), random);
  check_resample({2, 20, 3, 3}, {1, 1}, shifted(-1, -1), random);
  check_resample({2, 20, 1, 1}, {3, 3}, shifted(1, 1), random);
  check_resample({1, 4, 3, 3}, {2, 2}, shifted(5, 0), random);  // nothing of the image is left
}
