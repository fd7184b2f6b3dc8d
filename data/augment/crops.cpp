#include "data/augment/crops.h"

#include <algorithm>
#include <cmath>

namespace dp {
namespace {

constexpr int kFraction = 22;
constexpr std::int32_t kHalf = 1 << (kFraction - 1);

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kFraction, 0, 255)); }

// Weights at a distance of 0 or more, in outputs. The cubic is that of Keys with a = -0.5.
double triangle(double distance) { return std::max(1.0 - distance, 0.0); }
double cubic(double x) {
  constexpr double a = -0.5;
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

}  // namespace

void Resizer::Axis::prepare(std::int64_t in, std::int64_t out, std::int64_t begin, std::int64_t count,
                            Interpolation by) {
  const bool is_cubic = by == Interpolation::bicubic;
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double widened = std::max(scale, 1.0), reach = is_cubic ? 2.0 * widened : widened;
  const double per_input = 1.0 / widened;
  stride = 2 * static_cast<std::int64_t>(std::ceil(reach)) + 1;
  taps.resize(static_cast<std::size_t>(count));
  weights.resize(static_cast<std::size_t>(count * stride));
  exact.resize(static_cast<std::size_t>(stride));
  for (std::int64_t i = 0; i < count; ++i) {
    const double centre = (static_cast<double>(begin + i) + 0.5) * scale;
    const std::int64_t first = std::max<std::int64_t>(static_cast<std::int64_t>(centre - reach + 0.5), 0);
    const std::int64_t end = std::min<std::int64_t>(static_cast<std::int64_t>(centre + reach + 0.5), in);
    double sum = 0;
    for (std::int64_t k = 0; k < end - first; ++k) {
      const double distance = std::abs((static_cast<double>(first + k) - centre + 0.5) * per_input);
      sum += exact[static_cast<std::size_t>(k)] = is_cubic ? cubic(distance) : triangle(distance);
    }
    for (std::int64_t k = 0; k < end - first; ++k) {
      const double weight = exact[static_cast<std::size_t>(k)] / sum;
      weights[static_cast<std::size_t>(i * stride + k)] =
          static_cast<std::int32_t>(weight * (1 << kFraction) + (weight < 0 ? -0.5 : 0.5));
    }
    taps[static_cast<std::size_t>(i)] = {first, end - first};
  }
}

// Each output copies one input. Positions are added up as in Pillow, because rounding decides between two inputs.
void Resizer::Axis::prepare_nearest(std::int64_t in, std::int64_t out, std::int64_t begin, std::int64_t count) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  taps.resize(static_cast<std::size_t>(count));
  double at = scale * 0.5;
  for (std::int64_t i = 0; i < begin + count; ++i, at += scale)
    if (i >= begin) taps[static_cast<std::size_t>(i - begin)] = {std::min(static_cast<std::int64_t>(at), in - 1), 1};
}

void Resizer::copy_nearest(RgbView source, const Region& window, std::span<std::uint8_t> out) const {
  const std::int64_t plane = window.width * window.height;
  std::uint8_t* to = out.data();
  for (const auto& row : rows_.taps)
    for (const auto& column : columns_.taps) {
      const std::uint8_t* const pixel = source.pixels + row.first * source.row_bytes + 3 * column.first;
      to[0] = pixel[0], to[plane] = pixel[1], to[2 * plane] = pixel[2];
      ++to;
    }
}

void Resizer::resize(RgbView source, std::int64_t width, std::int64_t height, const Region& window,
                     Interpolation interpolation, std::span<std::uint8_t> out) {
  if (interpolation == Interpolation::nearest) {
    columns_.prepare_nearest(source.width, width, window.left, window.width);
    rows_.prepare_nearest(source.height, height, window.top, window.height);
    return copy_nearest(source, window, out);
  }
  columns_.prepare(source.width, width, window.left, window.width, interpolation);
  rows_.prepare(source.height, height, window.top, window.height, interpolation);
  const std::int64_t first_row = rows_.taps.front().first;
  const std::int64_t row_count = rows_.taps.back().first + rows_.taps.back().count - first_row;
  const std::int64_t line = 3 * window.width;
  between_.resize(static_cast<std::size_t>(row_count * line));
  for (std::int64_t y = 0; y < row_count; ++y) {
    const std::uint8_t* const in = source.pixels + (first_row + y) * source.row_bytes;
    std::uint8_t* const to = between_.data() + y * line;
    const std::int32_t* weight = columns_.weights.data();
    for (std::int64_t x = 0; x < window.width; ++x, weight += columns_.stride) {
      const auto [first, count] = columns_.taps[static_cast<std::size_t>(x)];
      const std::uint8_t* pixel = in + 3 * first;
      std::int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (std::int64_t k = 0; k < count; ++k, pixel += 3) {
        red += weight[k] * pixel[0];
        green += weight[k] * pixel[1];
        blue += weight[k] * pixel[2];
      }
      to[x] = rounded(red);
      to[window.width + x] = rounded(green);
      to[2 * window.width + x] = rounded(blue);
    }
  }

  sums_.resize(static_cast<std::size_t>(line));
  const std::int64_t plane = window.width * window.height;
  for (std::int64_t y = 0; y < window.height; ++y) {
    const auto [first, count] = rows_.taps[static_cast<std::size_t>(y)];
    std::fill(sums_.begin(), sums_.end(), kHalf);
    std::int32_t* const sums = sums_.data();
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int32_t weight = rows_.weights[static_cast<std::size_t>(y * rows_.stride + k)];
      const std::uint8_t* const in = between_.data() + (first - first_row + k) * line;
      for (std::int64_t x = 0; x < line; ++x) sums[x] += weight * in[x];
    }
    for (std::int64_t c = 0; c < 3; ++c) {
      std::uint8_t* const to = out.data() + c * plane + y * window.width;
      for (std::int64_t x = 0; x < window.width; ++x) to[x] = rounded(sums[c * window.width + x]);
    }
  }
}

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

CentralCrop central_crop(std::int64_t width, std::int64_t height, std::int64_t side, double crop_pct) {
  const auto shorter = static_cast<std::int64_t>(static_cast<double>(side) / crop_pct);
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
