// Truncated images, images with wrong headers, and rare formats.
#include <png.h>

#include "data/formats/rgb_image.h"
#include "data/image_files.h"
#include "dp/random.h"
#include "support/catch.h"

using dp::test::corpus_image;

namespace {

using Bytes = std::vector<std::uint8_t>;

std::string refusal(const Bytes& bytes) {
  dp::RgbImage image;
  try {
    dp::decode_image("cat.jpg", bytes, image);
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::data);
    CHECK_THAT(error.what(), Catch::StartsWith("cat.jpg: "));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    CHECK(image.pixels.capacity() < 3u << 20);
    return error.what();
  }
  FAIL("accepted");
  return {};
}

Bytes first_bytes(const Bytes& bytes, std::size_t count) {
  return {bytes.begin(), bytes.begin() + static_cast<long>(count)};
}

// The offset of the height in the frame header (SOF0 or SOF2): two bytes, followed by the width.
std::size_t jpeg_height_at(const Bytes& bytes) {
  for (std::size_t i = 2;; i += 2 + (std::size_t{bytes.at(i + 2)} << 8 | bytes.at(i + 3)))
    if (bytes.at(i + 1) == 0xc0 || bytes.at(i + 1) == 0xc2) return i + 5;
}

Bytes with_size(Bytes bytes, std::size_t at, std::initializer_list<int> value) {
  for (const int byte : value) bytes.at(at++) = static_cast<std::uint8_t>(byte);
  return bytes;
}

// A PNG of this colour type and bit depth with the given unfiltered rows.
Bytes png(int width, int height, int kind, int depth, bool interlaced, const std::vector<Bytes>& rows) {
  Bytes out;
  png_structp writer = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(writer);
  png_set_write_fn(
      writer, &out,
      [](png_structp into, png_bytep data, std::size_t count) {
        auto* bytes = static_cast<Bytes*>(png_get_io_ptr(into));
        bytes->insert(bytes->end(), data, data + count);
      },
      nullptr);
  png_set_IHDR(writer, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), depth, kind,
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer, info);
  const int passes = png_set_interlace_handling(writer);
  for (int pass = 0; pass < passes; ++pass)
    for (const Bytes& row : rows) png_write_row(writer, row.data());
  png_write_end(writer, nullptr);
  png_destroy_write_struct(&writer, &info);
  return out;
}

std::vector<Bytes> noise(int rows, int bytes) {
  dp::Random random(8, dp::RandomUse::synthetic);
  std::vector<Bytes> all(static_cast<std::size_t>(rows), Bytes(static_cast<std::size_t>(bytes)));
  for (Bytes& row : all)
    for (std::uint8_t& byte : row) byte = static_cast<std::uint8_t>(random.next());
  return all;
}

Bytes decoded(const Bytes& bytes) {
  dp::RgbImage image;
  dp::decode_image("image", bytes, image);
  return image.pixels;
}

}  // namespace

TEST_CASE("an image cut at any byte is rejected") {
  for (const std::string& name : dp::test::corpus_names()) {
    INFO(name);
    const Bytes bytes = corpus_image(name);
    REQUIRE(bytes.size() > 100);
    const std::size_t step = bytes.size() > 1500 ? 17 : 1;
    for (std::size_t cut = 0; cut < bytes.size(); cut += step) {
      INFO("cut at " << cut);
      refusal(first_bytes(bytes, cut));
    }
    for (const std::size_t left : {1, 2, 3, 4}) refusal(first_bytes(bytes, bytes.size() - left));
  }
}

TEST_CASE("a JPEG cut within its scan is rejected, even with a complete thumbnail") {
  Bytes bytes = corpus_image("jpeg_420");
  const Bytes segment{0xff, 0xe1, 0, 8, 0xff, 0xd8, 0xff, 0xda, 0xff, 0xd9};
  bytes.insert(bytes.begin() + 2, segment.begin(), segment.end());
  CHECK(decoded(bytes) == decoded(corpus_image("jpeg_420")));
  for (const std::size_t left : {2, 40, 200})
    CHECK_THAT(refusal(first_bytes(bytes, bytes.size() - left)), Catch::Contains("the JPEG data end too early"));
}

TEST_CASE("a file that is not an image is rejected, whatever its name") {
  CHECK_THAT(refusal({}), Catch::Contains("is empty"));
  CHECK_THAT(refusal({1, 2, 3, 4, 5, 6}), Catch::Contains("neither JPEG nor PNG nor WebP"));
  CHECK_THAT(refusal({0x47, 0x49, 0x46, 0x38, 0x39, 0x61}),
             Catch::EndsWith("it is a GIF image, by its first bytes; convert it to JPEG, PNG or WebP, or remove it"));
  CHECK_THAT(refusal({'<', 'h', 't', 'm', 'l', '>'}),
             Catch::Contains("it is an HTML page, so the download has failed"));
  CHECK_THAT(refusal({0xff, 0xd8, 0xff}), Catch::Contains("not a JPEG that can be decoded"));
  CHECK_THAT(refusal({0x89, 'P', 'N', 'G', 13, 10, 26, 10}), Catch::Contains("not a PNG that can be decoded"));
  CHECK_THAT(refusal({0x89, 'P', 'N', 'G', 0, 0, 0, 0, 0}), Catch::Contains("not a PNG that can be decoded"));
}

TEST_CASE("a damaged or animated WebP is rejected") {
  Bytes lossless = corpus_image("webp_lossless");
  const Bytes lossy = corpus_image("webp_lossy");
  CHECK_THAT(refusal(first_bytes(lossy, 12)), Catch::Contains("its header is damaged"));
  CHECK_THAT(refusal(first_bytes(lossy, 200)), Catch::Contains("its data are damaged or end too early"));
  std::fill(lossless.begin() + 30, lossless.end(), std::uint8_t{0xff});
  CHECK_THAT(refusal(lossless), Catch::Contains("not a WebP that can be decoded"));
  // An extended file (VP8X) whose flags say that it is animated, of 1x1 pixels.
  Bytes animated{'R', 'I', 'F', 'F', 22, 0, 0, 0, 'W', 'E', 'B', 'P', 'V', 'P', '8', 'X', 10, 0, 0, 0, 2};
  animated.resize(30);
  CHECK_THAT(refusal(animated), Catch::Contains("an animated WebP"));
}

TEST_CASE("an image that claims too many pixels takes no memory") {
  const Bytes jpeg = corpus_image("jpeg_progressive"), rgb = corpus_image("png_rgb");
  const std::size_t height = jpeg_height_at(jpeg);
  CHECK_THAT(refusal(with_size(jpeg, height, {0xff, 0xdc, 0xff, 0xdc})),
             Catch::Contains("expected an image of 1 to 67108864 pixels, found 65500x65500"));
  refusal(with_size(jpeg, height, {0, 0}));
  refusal(with_size(jpeg, height + 2, {0, 0}));
  refusal(with_size(rgb, 16, {0x7f, 0xff, 0xff, 0xff}));  // the checksum is wrong, too
  // 70,000 x 1,000 pixels of one colour compress to a few hundred bytes per million pixels.
  const std::vector<Bytes> rows(1000, Bytes(70000 / 8));
  CHECK_THAT(refusal(png(70000, 1000, PNG_COLOR_TYPE_GRAY, 1, false, rows)), Catch::Contains("found 70000x1000"));
}

TEST_CASE("an image has 1 to 67,108,864 pixels in any shape") {
  dp::RgbImage image;
  const auto taken = [&](std::int64_t width, std::int64_t height) {
    try {
      dp::set_size("image", width, height, 1, image);
      return true;
    } catch (const dp::Error&) {
      return false;
    }
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  for (const auto& [width, height] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {8192, 8192}, {1, 8192 * 8192}})
    CHECK(taken(width, height));
  CHECK(image.pixels.size() == 8192 * 8192);
  for (const auto& [width, height] : {std::pair<std::int64_t, std::int64_t>{8193, 8192},
                                      {8192, 8193},
                                      {1, 8192 * 8192 + 1},
                                      {8192 * 8192 + 1, 1},
                                      {0, 1},
                                      {1, 0},
                                      {-1, -1},
                                      {kHuge, kHuge},
                                      {2, kHuge}})
    CHECK_FALSE(taken(width, height));
}

TEST_CASE("damage inside a PNG is detected by its checksums") {
  const Bytes good = corpus_image("png_rgb");
  for (std::size_t byte = 0; byte < good.size(); byte += 7) {
    INFO("byte " << byte);
    Bytes bytes = good;
    bytes[byte] ^= 0x10;
    refusal(bytes);
  }
}

TEST_CASE("damage inside a JPEG's scan gives pixels or an error and never affects the next image") {
  const Bytes good = corpus_image("jpeg_420");
  const Bytes pixels = decoded(good);
  for (std::size_t byte = 2; byte < good.size(); byte += 5) {
    Bytes bytes = good;
    bytes[byte] ^= 0x10;
    try {
      decoded(bytes);
    } catch (const dp::Error& error) {
      REQUIRE(error.code() == dp::ErrorCode::data);
    }
    REQUIRE(decoded(good) == pixels);
  }
}

TEST_CASE("an interlaced PNG has the same pixels") {
  const auto rows = noise(19, 3 * 23);
  Bytes expected;
  for (const Bytes& row : rows) expected.insert(expected.end(), row.begin(), row.end());
  CHECK(decoded(png(23, 19, PNG_COLOR_TYPE_RGB, 8, false, rows)) == expected);
  CHECK(decoded(png(23, 19, PNG_COLOR_TYPE_RGB, 8, true, rows)) == expected);
}

TEST_CASE("PNG decoding uses the upper eight of sixteen bits, ignores alpha, and expands grey to three colours") {
  const auto rows = noise(5, 2 * 4 * 7);
  Bytes expected, grey;
  for (const Bytes& row : rows)
    for (std::size_t x = 0; x < 7; ++x) {
      for (std::size_t c = 0; c < 3; ++c) expected.push_back(row[8 * x + 2 * c]);
      for (std::size_t c = 0; c < 3; ++c) grey.push_back(row[4 * x]);
    }
  CHECK(decoded(png(7, 5, PNG_COLOR_TYPE_RGB_ALPHA, 16, false, rows)) == expected);
  CHECK(decoded(png(7, 5, PNG_COLOR_TYPE_GRAY_ALPHA, 16, true, rows)) == grey);
}

TEST_CASE("grey of two and four bits spans black to white") {
  CHECK(decoded(png(4, 1, PNG_COLOR_TYPE_GRAY, 2, false, {{0b00011011}})) ==
        Bytes{0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255});
  CHECK(decoded(png(2, 1, PNG_COLOR_TYPE_GRAY, 4, false, {{0x0f}})) == Bytes{0, 0, 0, 255, 255, 255});
}
