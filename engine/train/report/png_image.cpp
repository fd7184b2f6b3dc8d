#include "engine/train/report/png_image.h"

#include <png.h>

#include <algorithm>

#include "dp/error.h"

namespace dp {

std::vector<std::uint8_t> png_of(const Shape& shape, std::span<const std::uint8_t> planes) {
  constexpr std::int64_t kSide = 80;
  const std::int64_t height = shape[1], width = shape[2], channels = shape[0] == 3 ? 3 : 1;
  const std::int64_t factor = (std::max(height, width) + kSide - 1) / kSide;
  const std::int64_t rows = (height + factor - 1) / factor, columns = (width + factor - 1) / factor;
  std::vector<std::uint8_t> pixels;
  pixels.reserve(static_cast<std::size_t>(rows * columns * channels));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        std::int64_t sum = 0, count = 0;
        for (std::int64_t y = row * factor; y < std::min((row + 1) * factor, height); ++y)
          for (std::int64_t x = column * factor; x < std::min((column + 1) * factor, width); ++x, ++count)
            sum += planes[static_cast<std::size_t>((channel * height + y) * width + x)];
        pixels.push_back(static_cast<std::uint8_t>((sum + count / 2) / count));
      }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(columns);
  image.height = static_cast<png_uint_32>(rows);
  image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::uint8_t> png(bytes);
  if (png_image_write_to_memory(&image, png.data(), &bytes, 0, pixels.data(), 0, nullptr) == 0) {
    const std::string what = image.message;
    png_image_free(&image);
    throw Error(ErrorCode::io, "an image of the report was not made: " + what);
  }
  png.resize(bytes);
  return png;
}

std::string base64(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? bytes[at + i] : 0u);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

}  // namespace dp
