// Max-pooling of one plane against its definition, in blocks of channels that no convolution may produce on this
// processor, with NaN and equal values.
#include <cmath>
#include <limits>
#include <vector>

#include "dp/random.h"
#include "kernels/pool/cpu_plane.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;

using Mask = std::vector<std::uint8_t>;

struct Pooled {
  std::vector<float> y;
  Mask mask;
};

// The first NaN of a window is its maximum. ReLU keeps it, but it passes no gradient.
Pooled naive(const PoolPlanes& p, bool relu, const std::vector<float>& x) {
  Pooled result;
  for (std::int64_t oh = 0; oh < p.pooled_h; ++oh)
    for (std::int64_t ow = 0; ow < p.pooled_w; ++ow)
      for (std::int64_t c = 0; c < p.block; ++c) {
        int best = -1;
        float value = 0;
        for (int cell = 0; cell < p.window.kernel.h * p.window.kernel.h; ++cell) {
          const std::int64_t row = oh * p.window.stride.h - p.window.padding.h + cell / p.window.kernel.h,
                             col = ow * p.window.stride.h - p.window.padding.h + cell % p.window.kernel.h;
          if (row < 0 || row >= p.h || col < 0 || col >= p.w) continue;
          const float v = x[static_cast<std::size_t>((row * p.w + col) * p.block + c)];
          if (best < 0 || v > value || (std::isnan(v) && !std::isnan(value))) best = cell, value = v;
        }
        if (relu && !(value > 0)) best = kNoGradient;
        result.y.push_back(relu && value < 0 ? 0 : value);
        result.mask.push_back(static_cast<std::uint8_t>(best));
      }
  return result;
}

std::vector<float> naive_backward(const PoolPlanes& p, float scale, const std::vector<float>& dy, const Mask& mask) {
  std::vector<float> dx(static_cast<std::size_t>(p.h * p.w * p.block));
  for (std::size_t i = 0; i < dy.size(); ++i) {
    if (mask[i] == kNoGradient) continue;
    const auto at = static_cast<std::int64_t>(i) / p.block, c = static_cast<std::int64_t>(i) % p.block;
    const std::int64_t row = at / p.pooled_w * p.window.stride.h - p.window.padding.h + mask[i] / p.window.kernel.h,
                       col = at % p.pooled_w * p.window.stride.h - p.window.padding.h + mask[i] % p.window.kernel.h;
    dx[static_cast<std::size_t>((row * p.w + col) * p.block + c)] += dy[i] * scale;
  }
  return dx;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
  return equal;
}

}  // namespace

TEST_CASE("a max-pool of a plane finds the first maximum or NaN of each window, and sends the gradient there") {
  Random random(92, RandomUse::synthetic);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t block : {1, 3, 8, 16, 24})
    for (const Window& window : {Window{2, 2, 0}, Window{2, 2, 1}, Window{3, 2, 1}, Window{3, 1, 1}, Window{2, 1, 0}})
      for (const bool relu : {false, true}) {
        const auto pooled = [&](std::int64_t size) {
          return (size + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
        };
        const PoolPlanes planes{7, 9, pooled(7), pooled(9), block, window};
        INFO("block " << block << ", kernel " << window.kernel.h << ", stride " << window.stride.h << ", padding "
                      << window.padding.h << ", relu " << relu);
        std::vector<float> x(static_cast<std::size_t>(7 * 9 * block));
        for (float& value : x) value = random.below(8) == 0 ? nan : static_cast<float>(random.below(3)) - 1;
        const Pooled expected = naive(planes, relu, x);
        std::vector<float> y(expected.y.size(), -7);
        Mask mask(expected.mask.size(), 77);
        max_pool_plane(planes, relu, x.data(), y.data(), mask.data());
        CHECK(same(y, expected.y));
        CHECK(mask == expected.mask);
        y.assign(y.size(), -7);
        max_pool_plane(planes, relu, x.data(), y.data(), nullptr);
        CHECK(same(y, expected.y));

        std::vector<float> dy(y.size()), dx(x.size(), nan);
        for (float& value : dy) value = static_cast<float>(random.below(64)) / 8 - 4;  // all sums are exact
        max_pool_plane_backward(planes, 2.0f, dy.data(), mask.data(), dx.data());
        CHECK(same(dx, naive_backward(planes, 2.0f, dy, mask)));
      }
}
