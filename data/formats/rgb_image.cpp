#include "data/formats/rgb_image.h"

#include <png.h>
#include <turbojpeg.h>
#include <webp/decode.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csetjmp>
#include <cstring>
#include <new>
#include <string_view>

namespace dp {

namespace {

constexpr std::array<std::uint8_t, 3> kJpeg{0xff, 0xd8, 0xff};
constexpr std::array<std::uint8_t, 4> kPng{0x89, 'P', 'N', 'G'};

bool begins_with(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

bool is_webp(std::span<const std::uint8_t> bytes) {  // a RIFF file of this form; its size is in between
  constexpr std::array<std::uint8_t, 4> kRiff{'R', 'I', 'F', 'F'}, kForm{'W', 'E', 'B', 'P'};
  return begins_with(bytes, kRiff) && begins_with(bytes.subspan(std::min<std::size_t>(8, bytes.size())), kForm);
}

}  // namespace

std::string recognised(std::span<const std::uint8_t> begin) {
  std::string text(begin.begin(), begin.end());
  const auto starts = [&](std::string_view bytes) { return text.starts_with(bytes); };
  using namespace std::string_view_literals;
  if (starts("PK\x03\x04"sv)) return "a zip archive, such as torch.save writes";
  if (starts("\x80\x02"sv) || starts("\x80\x03"sv) || starts("\x80\x04"sv) || starts("\x80\x05"sv))
    return "a Python pickle, such as older torch.save writes";
  if (starts("\x1f\x8b"sv)) return "a gzip archive";
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
  if (is_webp(begin)) return "a WebP image";
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

std::size_t bytes_to_decode(std::span<const std::uint8_t> bytes) {
  if (begins_with(bytes, kJpeg)) return bytes_to_decode_jpeg(bytes);
  if (begins_with(bytes, kPng)) return bytes_to_decode_png(bytes);
  return is_webp(bytes) ? bytes_to_decode_webp(bytes) : 0;
}

void decode_image(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image) {
  if (begins_with(bytes, kJpeg)) return decode_jpeg(name, bytes, image);
  if (begins_with(bytes, kPng)) return decode_png(name, bytes, image);
  if (is_webp(bytes)) return decode_webp(name, bytes, image);
  if (bytes.empty()) throw undecodable(name, "the file is empty");
  const std::string kind = recognised(bytes.first(std::min(bytes.size(), kRecognisedBytes)));
  if (kind.ends_with(" image"))
    throw Error(ErrorCode::data,
                name + ": it is " + kind + ", by its first bytes; convert it to JPEG, PNG or WebP, or remove it");
  throw undecodable(name, kind.empty() ? "neither JPEG nor PNG nor WebP, by its first bytes" : "it is " + kind);
}

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

namespace {

// libpng reports errors by longjmp. Functions on the stack between setjmp and on_error must hold no objects with
// destructors.
struct Reading {
  std::span<const std::uint8_t> bytes;
  std::size_t at = 0;
  std::int64_t rows_left = 1;    // of all interlace passes
  std::size_t bytes_behind = 0;  // image data read after the last row
  std::array<char, 128> fault{};
};

// Limit of image data after the last row. Checksum and padding take a few bytes. libpng inflates everything after them,
// to up to a thousand times its size.
constexpr std::size_t kMostBytesBehind = std::size_t{1} << 14;
constexpr png_uint_32 kImageData = 0x49444154;  // "IDAT"

[[noreturn]] void on_error(png_structp png, png_const_charp what) {
  auto* reading = static_cast<Reading*>(png_get_error_ptr(png));
  std::strncpy(reading->fault.data(), what, reading->fault.size() - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, std::size_t count) {
  auto* reading = static_cast<Reading*>(png_get_io_ptr(png));
  if (count > reading->bytes.size() - reading->at) png_error(png, "the data end too early");
  std::memcpy(out, reading->bytes.data() + reading->at, count);
  reading->at += count;
  if (reading->rows_left == 0 && png_get_io_chunk_type(png) == kImageData) reading->bytes_behind += count;
  if (reading->bytes_behind > kMostBytesBehind) png_error(png, "more image data than rows");
}

// libpng calls this for each inflated row.
void count_row(png_structp png, png_row_infop, png_bytep) { --static_cast<Reading*>(png_get_io_ptr(png))->rows_left; }

std::int64_t rows_of_all_passes(std::int64_t width, std::int64_t height, int passes) {
  if (passes == 1) return height;
  std::int64_t rows = 0;
  for (int pass = 0; pass < passes; ++pass)
    if (PNG_PASS_COLS(width, pass) > 0) rows += PNG_PASS_ROWS(height, pass);
  return rows;
}

struct Png {
  explicit Png(Reading& reading)
      : read(png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, on_error, on_warning)),
        info(read ? png_create_info_struct(read) : nullptr) {
    if (info) return;
    png_destroy_read_struct(&read, nullptr, nullptr);
    throw std::bad_alloc();
  }
  ~Png() { png_destroy_read_struct(&read, &info, nullptr); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  png_structp read;
  png_infop info;
};

// The next three functions return false on errors. reading.fault then has the message.
bool read_header(const Png& png, Reading* reading) {
  if (setjmp(png_jmpbuf(png.read))) return false;
  png_set_read_fn(png.read, reading, read_bytes);
  png_set_user_limits(png.read, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // set_size() has the limit
  // Skips texts, profiles and other ancillary chunks without inflating them: they can grow a thousandfold.
  png_set_keep_unknown_chunks(png.read, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png.read, png.info);
  return true;
}

bool ask_for_rgb(const Png& png, int* passes) {
  if (setjmp(png_jmpbuf(png.read))) return false;
  const int colours = png_get_color_type(png.read, png.info);
  const int depth = png_get_bit_depth(png.read, png.info);
  if (depth == 16) png_set_strip_16(png.read);
  if (colours == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png.read);
  if (colours == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png.read);
  if (!(colours & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png.read);
  png_set_strip_alpha(png.read);
  png_set_read_user_transform_fn(png.read, count_row);
  *passes = png_set_interlace_handling(png.read);
  png_read_update_info(png.read, png.info);
  return true;
}

bool read_rows(const Png& png, std::uint8_t* pixels, std::int64_t height, std::int64_t row_bytes, int passes) {
  if (setjmp(png_jmpbuf(png.read))) return false;
  for (int pass = 0; pass < passes; ++pass)
    for (std::int64_t y = 0; y < height; ++y) png_read_row(png.read, pixels + y * row_bytes, nullptr);
  png_read_end(png.read, nullptr);
  return true;
}

}  // namespace

std::size_t bytes_to_decode_png(std::span<const std::uint8_t> bytes) {
  Reading reading{.bytes = bytes};
  const Png png(reading);
  if (!read_header(png, &reading)) return 0;
  const std::int64_t width = png_get_image_width(png.read, png.info), height = png_get_image_height(png.read, png.info);
  return width < 1 || height < 1 || width > kMaxPixels / height ? 0 : static_cast<std::size_t>(width * height * 3);
}

void decode_png(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image) {
  Reading reading{.bytes = bytes};
  const Png png(reading);
  const auto check = [&](bool fine) {
    if (!fine) throw undecodable(name, std::string("not a PNG that can be decoded (") + reading.fault.data() + ")");
  };
  check(read_header(png, &reading));
  set_size(name, png_get_image_width(png.read, png.info), png_get_image_height(png.read, png.info), 3, image);
  int passes = 1;
  check(ask_for_rgb(png, &passes));
  const std::int64_t row_bytes = image.width * 3;
  if (png_get_rowbytes(png.read, png.info) != static_cast<std::size_t>(row_bytes))
    throw undecodable(name, "not a PNG of a known colour type");
  reading.rows_left = rows_of_all_passes(image.width, image.height, passes);
  check(read_rows(png, image.pixels.data(), image.height, row_bytes, passes));
}

namespace {

// Reads the header. Returns false if it is damaged.
bool read_features(std::span<const std::uint8_t> bytes, WebPBitstreamFeatures& features) {
  return WebPGetFeatures(bytes.data(), bytes.size(), &features) == VP8_STATUS_OK;
}

}  // namespace

std::size_t bytes_to_decode_webp(std::span<const std::uint8_t> bytes) {
  constexpr int kLossless = 2;
  WebPBitstreamFeatures features;
  if (!read_features(bytes, features) || features.width > kMaxPixels / std::max(features.height, 1)) return 0;
  const auto pixels = static_cast<std::size_t>(features.width) * static_cast<std::size_t>(features.height);
  return pixels * (features.format == kLossless ? 7 : 3);
}

void decode_webp(const std::string& name, std::span<const std::uint8_t> bytes, RgbImage& image) {
  WebPBitstreamFeatures features;
  if (!read_features(bytes, features))
    throw undecodable(name, "not a WebP that can be decoded (its header is damaged)");
  if (features.has_animation) throw undecodable(name, "an animated WebP");
  set_size(name, features.width, features.height, 3, image);
  if (WebPDecodeRGBInto(bytes.data(), bytes.size(), image.pixels.data(), image.pixels.size(), 3 * features.width) ==
      nullptr)
    throw undecodable(name, "not a WebP that can be decoded (its data are damaged or end too early)");
}

}  // namespace dp
