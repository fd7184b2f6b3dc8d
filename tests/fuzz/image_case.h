// One fuzz input through the image decoders.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

#include "data/formats/rgb_image.h"

namespace dp::test {

enum class ImageVerdict { decoded, refused };

// Throws std::logic_error if the decoded image is inconsistent. Passes on every exception of the decoder except
// Error(data).
inline ImageVerdict run_image_case(std::span<const std::uint8_t> input) {
  RgbImage image;
  try {
    decode_image("input", input, image);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    return ImageVerdict::refused;
  }
  if (image.width < 1 || image.height < 1 || image.width * image.height > kMaxPixels ||
      image.pixels.size() != static_cast<std::size_t>(3 * image.width * image.height))
    throw std::logic_error("an image of the wrong size was accepted");
  return ImageVerdict::decoded;
}

}  // namespace dp::test
