#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <new>

#include "data/formats/rgb_image.h"

namespace dp {
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

}  // namespace dp
