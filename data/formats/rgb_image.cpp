#include "data/formats/rgb_image.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace dp {

std::string recognised(std::span<const std::uint8_t> begin) {
  std::string text(begin.begin(), begin.end());
  const auto starts = [&](std::string_view bytes) { return text.starts_with(bytes); };
  using namespace std::string_view_literals;
  if (starts("PK\x03\x04"sv)) return "a zip archive, such as torch.save writes";
  if (starts("\x80\x02"sv) || starts("\x80\x03"sv) || starts("\x80\x04"sv) || starts("\x80\x05"sv))
    return "a Python pickle, such as older torch.save writes";
  if (starts("\x1f\x8b"sv)) return "a gzip archive";
  if (starts("RIFF"sv) && text.size() >= 12 && text.compare(8, 4, "WEBP") == 0) return "a WebP image";
  if (starts("GIF87a"sv) || starts("GIF89a"sv)) return "a GIF image";
  if (starts("BM"sv) && text.size() >= 10 && text.compare(6, 4, "\0\0\0\0"sv) == 0) return "a BMP image";
  for (const std::string_view tiff : {"II*\0"sv, "MM\0*"sv, "II+\0"sv, "MM\0+"sv})
    if (starts(tiff)) return "a TIFF image";
  if (text.size() >= 12 && text.compare(4, 4, "ftyp") == 0) {  // the ISO base media file format
    const std::string brand = text.substr(8, 4);
    if (brand == "avif" || brand == "avis") return "an AVIF image";
    for (const char* heic : {"heic", "heix", "heim", "heis", "hevc", "hevx", "mif1", "msf1"})
      if (brand == heic) return "a HEIC image";
    return "a video";
  }
  if (starts("\0\0\0\x0cJXL "sv) || starts("\xff\x0a"sv)) return "a JPEG XL image";
  if (starts("\0\0\0\x0cjP  "sv) || starts("\xff\x4f\xff\x51"sv)) return "a JPEG 2000 image";
  if (starts("8BPS"sv)) return "a Photoshop image";
  if (starts("%PDF"sv)) return "a PDF document";
  if (starts("version https://"sv)) return "a Git LFS pointer, so the file was not downloaded (run git lfs pull)";
  if (starts("\x89HDF"sv)) return "an HDF5 file, such as Keras writes";
  text.erase(0, text.find_first_not_of(" \t\r\n\xef\xbb\xbf"));
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (starts("<!doctype"sv) || starts("<html"sv)) return "an HTML page, so the download has failed";
  return "";
}

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
