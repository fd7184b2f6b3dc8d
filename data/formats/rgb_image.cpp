#include "data/formats/rgb_image.h"

#include <algorithm>
#include <array>

#include "data/formats/file_kind.h"

namespace dp {

Error undecodable(const std::string& name, const std::string& what) {
  return Error(ErrorCode::data, name + ": " + what + "; replace the image or remove it");
}

void set_size(const std::string& name, std::int64_t width, std::int64_t height, std::int64_t bytes_per_pixel,
              RgbImage& image) {
  if (width < 1 || height < 1 || width > kMaxPixels / height)
    throw undecodable(name, "expected an image of 1 to " + std::to_string(kMaxPixels) + " pixels, found " +
                                std::to_string(width) + "x" + std::to_string(height));
  image.width = width;
  image.height = height;
  image.pixels.resize(static_cast<std::size_t>(width * height * bytes_per_pixel));
}

namespace {

constexpr std::array<std::uint8_t, 3> kJpeg{0xff, 0xd8, 0xff};
constexpr std::array<std::uint8_t, 4> kPng{0x89, 'P', 'N', 'G'};

bool begins_with(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

}  // namespace

std::size_t bytes_to_decode(std::span<const std::uint8_t> bytes) {
  if (begins_with(bytes, kJpeg)) return bytes_to_decode_jpeg(bytes);
  return begins_with(bytes, kPng) ? bytes_to_decode_png(bytes) : 0;
}

void decode_image(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image) {
  if (begins_with(bytes, kJpeg)) return decode_jpeg(name, bytes, image);
  if (begins_with(bytes, kPng)) return decode_png(name, bytes, image);
  if (bytes.empty()) throw undecodable(name, "the file is empty");
  const std::string kind = recognised(bytes.first(std::min(bytes.size(), kRecognisedBytes)));
  if (kind.ends_with(" image"))
    throw Error(ErrorCode::data,
                name + ": it is " + kind + ", by its first bytes; convert it to JPEG or PNG, or remove it");
  throw undecodable(name, kind.empty() ? "neither JPEG nor PNG, by its first bytes" : "it is " + kind);
}

}  // namespace dp
