// Compiled with -ffp-contract=off: a product is rounded before it is added, except where PyTorch's kernels use a fused
// multiply-add, which is std::fma here.
#include "data/augment/image_ops.h"

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace dp {
namespace {

using Table = std::array<std::uint8_t, 256>;

std::uint8_t truncated(float value) { return static_cast<std::uint8_t>(std::min(std::max(value, 0.0f), 255.0f)); }

template <typename Function>
Table table_of(const Function& function) {
  Table table;
  for (std::size_t byte = 0; byte < table.size(); ++byte) table[byte] = function(byte);
  return table;
}

void look_up(std::uint8_t* bytes, std::int64_t count, const Table& table) {
  for (std::int64_t i = 0; i < count; ++i) bytes[i] = table[bytes[i]];
}

// image * ratio + other * (1 - ratio)
struct Blend {
  explicit Blend(double factor) : ratio(static_cast<float>(factor)), rest(static_cast<float>(1.0 - factor)) {}
  std::uint8_t operator()(float image, float other) const { return truncated(std::fma(other, rest, image * ratio)); }
  float ratio, rest;
};

float grey(float red, float green, float blue) {
  return std::floor(std::fma(blue, 0.114f, std::fma(green, 0.587f, red * 0.2989f)));
}

float grey_at(Planes image, std::int64_t i) {
  const std::int64_t plane = image.pixels();
  return grey(image.bytes[i], image.bytes[plane + i], image.bytes[2 * plane + i]);
}

}  // namespace

void adjust_brightness(Planes image, double factor) {
  const auto ratio = static_cast<float>(factor);
  look_up(image.bytes, image.size(), table_of([&](std::size_t b) { return truncated(static_cast<float>(b) * ratio); }));
}

void adjust_contrast(Planes image, double factor) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < image.pixels(); ++i)
    sum += image.channels == 3 ? static_cast<std::int32_t>(grey_at(image, i)) : image.bytes[i];
  const float mean = static_cast<float>(sum) / static_cast<float>(image.pixels());
  const Blend blend(factor);
  look_up(image.bytes, image.size(), table_of([&](std::size_t b) { return blend(static_cast<float>(b), mean); }));
}

void adjust_saturation(Planes image, double factor) {
  if (image.channels != 3) return;
  const Blend blend(factor);
  const std::int64_t plane = image.pixels();
  for (std::int64_t i = 0; i < plane; ++i) {
    const float to = grey_at(image, i);
    for (std::int64_t c = 0; c < 3; ++c) {
      std::uint8_t& byte = image.bytes[c * plane + i];
      byte = blend(byte, to);
    }
  }
}

namespace {

struct Pixel {
  float red, green, blue;  // 0 to 1
};

Pixel turned(const Pixel& in, float turns) {
  const float most = std::max({in.red, in.green, in.blue}), least = std::min({in.red, in.green, in.blue});
  const float range = most - least;
  const float saturation = range / (range == 0 ? 1.0f : most), divisor = range == 0 ? 1.0f : range;
  const float red = (most - in.red) / divisor, green = (most - in.green) / divisor, blue = (most - in.blue) / divisor;
  const float sixths = most == in.red ? blue - green : most == in.green ? red + 2.0f - blue : green + 4.0f - red;
  float hue = sixths * static_cast<float>(1.0 / 6.0) + 1.0f;
  hue = hue - std::trunc(hue) + turns;
  hue -= std::trunc(hue);
  if (hue < 0) hue += 1.0f;

  const float sixfold = hue * 6.0f, sector = std::floor(sixfold), within = sixfold - sector;
  const auto clamped = [](float value) { return std::min(std::max(value, 0.0f), 1.0f); };
  const float falling = saturation * within, low = 1.0f - saturation;
  const float p = clamped(low * most), q = clamped((1.0f - falling) * most), t = clamped((falling + low) * most);
  switch (static_cast<int>(sector) % 6) {
    case 0: return {most, t, p};
    case 1: return {q, most, p};
    case 2: return {p, most, t};
    case 3: return {p, q, most};
    case 4: return {t, p, most};
    default: return {most, p, q};
  }
}

}  // namespace

void adjust_hue(Planes image, double turns) {
  if (image.channels != 3) return;
  std::array<float, 256> share;
  for (std::size_t byte = 0; byte < share.size(); ++byte)
    share[byte] = static_cast<float>(byte) * static_cast<float>(1.0 / 255.0);
  const auto byte_of = [](float value) { return static_cast<std::uint8_t>(value * 255.999f); };
  std::uint8_t *red = image.bytes, *green = red + image.pixels(), *blue = green + image.pixels();
  for (std::int64_t i = 0; i < image.pixels(); ++i) {
    const Pixel to = turned({share[red[i]], share[green[i]], share[blue[i]]}, static_cast<float>(turns));
    red[i] = byte_of(to.red), green[i] = byte_of(to.green), blue[i] = byte_of(to.blue);
  }
}

void posterize(Planes image, int bits) {
  const auto mask = static_cast<std::uint8_t>(0xff00 >> bits);
  for (std::int64_t i = 0; i < image.size(); ++i) image.bytes[i] &= mask;
}

void solarize(Planes image, double threshold) {
  const auto from = static_cast<float>(threshold);
  look_up(image.bytes, image.size(), table_of([&](std::size_t b) {
            return static_cast<std::uint8_t>(static_cast<float>(b) >= from ? 255 - b : b);
          }));
}

void autocontrast(Planes image) {
  for (std::int64_t c = 0; c < image.channels; ++c) {
    std::uint8_t* const plane = image.bytes + c * image.pixels();
    const auto [least, most] = std::minmax_element(plane, plane + image.pixels());
    const float low = *least, range = static_cast<float>(*most) - low;
    if (range == 0) continue;
    const float scale = range * static_cast<float>(1.0 / 255.0);
    look_up(plane, image.pixels(),
            table_of([&](std::size_t b) { return truncated((static_cast<float>(b) - low) / scale); }));
  }
}

void equalize(Planes image) {
  for (std::int64_t c = 0; c < image.channels; ++c) {
    std::uint8_t* const plane = image.bytes + c * image.pixels();
    std::array<std::int64_t, 256> count{};
    for (std::int64_t i = 0; i < image.pixels(); ++i) ++count[plane[i]];
    std::size_t most = 255;
    while (count[most] == 0) --most;
    const std::int64_t step = (image.pixels() - count[most]) / 255;
    if (step == 0) continue;
    std::int64_t below = 0;
    look_up(plane, image.pixels(), table_of([&](std::size_t b) {
              const std::int64_t level = b == 0 ? 0 : std::min<std::int64_t>((below + step / 2) / step, 255);
              below += count[b];
              return static_cast<std::uint8_t>(level);
            }));
  }
}

void invert(Planes image) {
  for (std::int64_t i = 0; i < image.size(); ++i) image.bytes[i] = static_cast<std::uint8_t>(~image.bytes[i]);
}

void adjust_sharpness(Planes image, double factor, std::uint8_t* out) {
  std::copy_n(image.bytes, image.size(), out);
  const std::int64_t columns = image.columns;
  const auto rest = static_cast<float>(1.0 - factor);
  for (std::int64_t c = 0; c < image.channels; ++c)
    for (std::int64_t y = 1; y + 1 < image.rows; ++y) {
      const std::int64_t row = c * image.pixels() + y * columns;
      for (std::int64_t x = 1; x + 1 < columns; ++x) {
        const std::uint8_t* const at = image.bytes + row + x;
        std::int32_t sum = 4 * at[0];
        for (const std::int64_t to : {-columns, std::int64_t{0}, columns}) sum += at[to - 1] + at[to] + at[to + 1];
        const std::int32_t blurred = (2 * sum + 13) / 26;  // sum / 13, rounded; there are no ties
        out[row + x] = truncated(std::fma(static_cast<float>(blurred - at[0]), rest, static_cast<float>(at[0])));
      }
    }
}

namespace {

// The source of each pixel, in pixels: where it lies in a column and in a row.
class Sources {
 public:
  Sources(Planes image, const Affine& transform)
      : width_(static_cast<float>(image.columns)), height_(static_cast<float>(image.rows)) {
    constexpr double kRadians = std::numbers::pi / 180.0;
    const double turn = transform.angle * kRadians, x = transform.shear_x * kRadians, y = transform.shear_y * kRadians;
    const double a = std::cos(turn - y) / std::cos(y), b = -(a * std::tan(x) + std::sin(turn));
    const double c = std::sin(turn - y) / std::cos(y), d = std::cos(turn) - c * std::tan(x);
    const double left = transform.about_corner ? -0.5 * static_cast<double>(image.columns) : 0.0;
    const double top = transform.about_corner ? -0.5 * static_cast<double>(image.rows) : 0.0;
    const double right = left + transform.right, down = top + transform.down;
    set(column_, {d, -b, left - d * right + b * down}, width_);
    set(row_, {-c, a, top + c * right - a * down}, height_);
  }

  std::pair<float, float> operator()(std::int64_t x, std::int64_t y) const {
    const float from_x = static_cast<float>(x) + (1.0f - width_) * 0.5f;
    const float from_y = static_cast<float>(y) + (1.0f - height_) * 0.5f;
    const auto at = [&](const std::array<float, 3>& line, float size) {
      return std::fma(from_x * line[0] + from_y * line[1] + line[2] + 1.0f, size * 0.5f, -0.5f);
    };
    return {at(column_, width_), at(row_, height_)};
  }

 private:
  static void set(std::array<float, 3>& line, const std::array<double, 3>& exact, float size) {
    for (std::size_t i = 0; i < 3; ++i) line[i] = static_cast<float>(exact[i]) / (0.5f * size);
  }

  float width_, height_;
  std::array<float, 3> column_{}, row_{};
};

}  // namespace

void affine(Planes image, const Affine& transform, Interpolation interpolation, std::uint8_t* out) {
  const Sources sources(image, transform);
  const std::int64_t rows = image.rows, columns = image.columns, plane = image.pixels();
  const auto byte_at = [&](std::int64_t c, std::int64_t y, std::int64_t x) {
    return y < 0 || x < 0 || y >= rows || x >= columns ? 0.0f
                                                       : static_cast<float>(image.bytes[c * plane + y * columns + x]);
  };
  for (std::int64_t y = 0; y < rows; ++y)
    for (std::int64_t x = 0; x < columns; ++x, ++out) {
      const auto [from_x, from_y] = sources(x, y);
      if (interpolation == Interpolation::nearest) {
        const std::int64_t column = std::lrint(from_x), row = std::lrint(from_y);
        for (std::int64_t c = 0; c < image.channels; ++c)
          out[c * plane] = static_cast<std::uint8_t>(byte_at(c, row, column));
        continue;
      }
      const float left = std::floor(from_x), top = std::floor(from_y);
      const float east = from_x - left, west = 1.0f - east, south = from_y - top, north = 1.0f - south;
      const float nw = west * north, ne = east * north, sw = west * south, se = east * south;
      const auto column = static_cast<std::int64_t>(left), row = static_cast<std::int64_t>(top);
      const bool inside = row >= 0 && column >= 0 && row + 1 < rows && column + 1 < columns;
      for (std::int64_t c = 0; c < image.channels; ++c) {
        float a, b, d, e;
        if (inside) {
          const std::uint8_t* const at = image.bytes + c * plane + row * columns + column;
          a = at[0], b = at[1], d = at[columns], e = at[columns + 1];
        } else {
          a = byte_at(c, row, column), b = byte_at(c, row, column + 1);
          d = byte_at(c, row + 1, column), e = byte_at(c, row + 1, column + 1);
        }
        const float sum = std::fma(e, se, std::fma(d, sw, std::fma(b, ne, a * nw)));
        out[c * plane] = static_cast<std::uint8_t>(std::lrint(sum));
      }
    }
}

}  // namespace dp
