#include <turbojpeg.h>

#include <algorithm>
#include <new>

#include "data/formats/rgb_image.h"

namespace dp {
namespace {

// Use one per image: libjpeg keeps tables between images, and its read position after a header error.
class Decompressor {
 public:
  Decompressor() : handle_(tjInitDecompress()) {
    if (!handle_) throw std::bad_alloc();
  }
  ~Decompressor() { tjDestroy(handle_); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
  tjhandle get() const { return handle_; }

 private:
  tjhandle handle_;
};

// Whether the end-of-image marker (ff d9) follows the last start-of-scan marker (ff da). Neither occurs in scan data.
bool has_end(std::span<const std::uint8_t> bytes) {
  for (std::size_t i = bytes.size(); i >= 2; --i)
    if (bytes[i - 2] == 0xff && (bytes[i - 1] == 0xd9 || bytes[i - 1] == 0xda)) return bytes[i - 1] == 0xd9;
  return false;
}

// Limits pixels x scans: libjpeg visits every block once per scan, even if the scan has few bytes. A progressive JPEG
// has about ten scans.
constexpr std::int64_t kMostPixelsOfScans = 16 * kMaxPixels;

// Also counts the scans of an embedded thumbnail.
std::int64_t count_scans(std::span<const std::uint8_t> bytes) {
  std::int64_t scans = 0;
  for (std::size_t i = 1; i < bytes.size(); ++i) scans += bytes[i - 1] == 0xff && bytes[i] == 0xda;
  return scans;
}

// Converts inverted CMYK (Adobe's convention, which libjpeg returns unchanged) to RGB in place.
void cmyk_to_rgb(RgbImage& image) {
  const auto scaled = [](unsigned value, unsigned by) {  // value * by / 255, rounded
    const unsigned product = value * by + 128;
    return static_cast<std::uint8_t>((product + (product >> 8)) >> 8);
  };
  const std::size_t count = image.pixels.size() / 4;
  const std::uint8_t* in = image.pixels.data();
  std::uint8_t* out = image.pixels.data();
  for (std::size_t i = 0; i < count; ++i, in += 4, out += 3) {
    const unsigned light = in[3];
    for (int c = 0; c < 3; ++c) out[c] = static_cast<std::uint8_t>(light - scaled(255u - in[c], light));
  }
  image.pixels.resize(count * 3);
}

}  // namespace

std::size_t bytes_to_decode_jpeg(std::span<const std::uint8_t> bytes) {
  const Decompressor decompressor;
  int width = -1, height = -1, subsampling = -1, colours = -1;
  tjDecompressHeader3(decompressor.get(), bytes.data(), static_cast<unsigned long>(bytes.size()), &width, &height,
                      &subsampling, &colours);
  if (width < 1 || height < 1 || width > kMaxPixels / height) return 0;
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const auto pixels = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  // Bytes of coefficients per pixel: 16 bits each. Chroma may have half the columns, half the rows, or both.
  const std::size_t halves = cmyk                                                     ? 8
                             : subsampling == TJSAMP_GRAY                             ? 2
                             : subsampling == TJSAMP_420                              ? 3
                             : subsampling == TJSAMP_422 || subsampling == TJSAMP_440 ? 4
                                                                                      : 6;
  return pixels * ((cmyk ? 4 : 3) + (count_scans(bytes) > 1 ? halves : 0));
}

void decode_jpeg(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image) {
  const Decompressor decompressor;
  const tjhandle handle = decompressor.get();
  const auto size = static_cast<unsigned long>(bytes.size());
  int width = -1, height = -1, subsampling = -1, colours = -1;
  const int status = tjDecompressHeader3(handle, bytes.data(), size, &width, &height, &subsampling, &colours);
  // tjDecompressHeader3 also fails for warnings and for subsamplings without a TJSAMP value. Decoding may still work.
  if (width < 0 || height < 0 || colours < 0)
    throw undecodable(name, std::string("not a JPEG that can be decoded (") +
                                (status == 0 ? "no picture in it" : tjGetErrorStr2(handle)) + ")");
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const std::int64_t pixels = std::clamp<std::int64_t>(std::int64_t{width} * height, 1, kMaxPixels);
  const std::int64_t scans = count_scans(bytes), most = kMostPixelsOfScans / pixels;
  if (scans > most)
    throw undecodable(name, "expected at most " + std::to_string(most) + " scans, found " + std::to_string(scans));
  set_size(name, width, height, cmyk ? 4 : 3, image);
  if (tjDecompress2(handle, bytes.data(), size, image.pixels.data(), width, 0, height, cmyk ? TJPF_CMYK : TJPF_RGB,
                    TJFLAG_LIMITSCANS) != 0) {
    const std::string reason = tjGetErrorStr2(handle);
    if (tjGetErrorCode(handle) != TJERR_WARNING)
      throw undecodable(name, "not a JPEG that can be decoded (" + reason + ")");
    if (!has_end(bytes)) throw undecodable(name, "the JPEG data end too early (" + reason + ")");
  }
  if (cmyk) cmyk_to_rgb(image);
}

}  // namespace dp
