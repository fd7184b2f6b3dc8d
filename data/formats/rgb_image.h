// Decoded images: red, green, blue, one byte each, pixel after pixel.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/error.h"

namespace dp {

// More than this in one image is refused before memory is taken for it.
inline constexpr std::int64_t kMaxPixels = std::int64_t{64} << 20;

struct RgbImage {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> pixels;  // grows and is kept, so that the next image needs no new memory
};

// Any of the formats below, told by its first bytes. Grey becomes equal red, green and blue; alpha, colour profiles and
// orientation tags are ignored. Error(data) that begins with `name` for bytes that are no whole image.
void decode_image(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);

// JPEG by libjpeg-turbo, with its slow exact DCT and smooth upsampling; CMYK and YCCK are converted without a profile.
void decode_jpeg(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);
// PNG of every colour type, interlaced or not; of 16 bits the upper eight.
void decode_png(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);

// "<name>: <what>; <what to do about an image that can not be decoded>".
Error undecodable(const std::string& name, const std::string& what);
// Error(data) unless the size is in bounds; else sizes the image.
void set_size(const std::string& name, std::int64_t width, std::int64_t height, std::int64_t bytes_per_pixel,
              RgbImage& image);

}  // namespace dp
