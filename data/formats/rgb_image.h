// Decodes images to RGB, and identifies file types by their first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/error.h"
#include "dp/image.h"

namespace dp {

// Recognises files that people give by mistake.

inline constexpr std::size_t kRecognisedBytes = 16;

// Identifies a wrong file type by its first bytes, up to kRecognisedBytes: "a zip archive, such as torch.save writes".
// Empty for any other.
std::string recognised(std::span<const std::uint8_t> begin);

// Larger images are rejected before allocation.
inline constexpr std::int64_t kMaxPixels = std::int64_t{64} << 20;

// As the function of dp/image.h, with the memory of the last image.
void decode_image(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);

// Bytes that decode_image() allocates for this file: the pixels and, for a JPEG of several scans, its coefficients, or
// for a lossless WebP, its pixels of four bytes. 0 if the file is not an image.
std::size_t bytes_to_decode(std::span<const std::uint8_t> bytes);

// JPEG by libjpeg-turbo, with the accurate DCT and smooth upsampling. Converts CMYK and YCCK without a colour profile.
void decode_jpeg(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);
std::size_t bytes_to_decode_jpeg(std::span<const std::uint8_t> bytes);
// PNG of every colour type, interlaced or not. Takes the upper eight of 16 bits.
void decode_png(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);

std::size_t bytes_to_decode_png(std::span<const std::uint8_t> bytes);
// WebP, lossy or lossless, by libwebp. Not animated.
void decode_webp(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image);
std::size_t bytes_to_decode_webp(std::span<const std::uint8_t> bytes);

// "<name>: <what>; <what to do about an image that cannot be decoded>".
Error undecodable(const std::string& name, const std::string& what);
// Sets the size and resizes image.pixels. Error(data) if the size is out of bounds.
void set_size(const std::string& name, std::int64_t width, std::int64_t height, std::int64_t bytes_per_pixel,
              RgbImage& image);

}  // namespace dp
