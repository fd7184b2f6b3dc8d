#include "data/augment/crops.h"

#include <algorithm>
#include <cmath>

namespace dp {
namespace {

constexpr float kLeastArea = 0.08f, kMostArea = 1.0f;
constexpr double kLeastRatio = 3.0 / 4.0, kMostRatio = 4.0 / 3.0;  // width to height

// Rounds to nearest, ties to even, like Python's round().
std::int64_t nearest(double value) { return std::llrint(value); }

}  // namespace

Region random_resized_crop(std::int64_t width, std::int64_t height, Random& random) {
  const double area = static_cast<double>(width * height);
  const auto low = static_cast<float>(std::log(kLeastRatio)), high = static_cast<float>(std::log(kMostRatio));
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double wanted = area * double{random.uniform(kLeastArea, kMostArea)};
    const double ratio = std::exp(double{random.uniform(low, high)});
    const std::int64_t w = nearest(std::sqrt(wanted * ratio)), h = nearest(std::sqrt(wanted / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const std::int64_t top = random.below(static_cast<std::uint32_t>(height - h + 1));
    const std::int64_t left = random.below(static_cast<std::uint32_t>(width - w + 1));
    return {left, top, w, h};
  }
  std::int64_t w = width, h = height;
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  if (ratio < kLeastRatio) h = nearest(static_cast<double>(width) / kLeastRatio);
  if (ratio > kMostRatio) w = nearest(static_cast<double>(height) * kMostRatio);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

CentralCrop central_crop(std::int64_t width, std::int64_t height, std::int64_t side) {
  const std::int64_t shorter = (side * 256 + 112) / 224;
  const auto longer = [&](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<double>(shorter * a) / static_cast<double>(b));
  };
  CentralCrop crop{shorter, shorter, {0, 0, side, side}};
  if (width > height) crop.width = longer(width, height);
  if (height > width) crop.height = longer(height, width);
  crop.window.left = nearest(static_cast<double>(crop.width - side) / 2.0);
  crop.window.top = nearest(static_cast<double>(crop.height - side) / 2.0);
  return crop;
}

}  // namespace dp
