// Small images that could take long to decode. The limits apply to CPU time, because other programs may load the
// machine.
#include <zlib.h>

#include <ctime>

#include "data/formats/rgb_image.h"
#include "data/refusal.h"
#include "support/catch.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

void append(Bytes& to, const Bytes& bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }
Bytes text(const std::string& characters) { return {characters.begin(), characters.end()}; }
Bytes big_endian(std::uint64_t value, int bytes) {
  Bytes out;
  while (bytes-- > 0) out.push_back(static_cast<std::uint8_t>(value >> (8 * bytes)));
  return out;
}

Bytes chunk(const std::string& type, const Bytes& data) {
  Bytes named = text(type);
  append(named, data);
  Bytes out = big_endian(data.size(), 4);
  append(out, named);
  append(out, big_endian(::crc32(0, named.data(), static_cast<uInt>(named.size())), 4));
  return out;
}

Bytes packed(const Bytes& bytes) {
  Bytes out(::compressBound(bytes.size()));
  uLongf size = out.size();
  REQUIRE(::compress2(out.data(), &size, bytes.data(), bytes.size(), 9) == Z_OK);
  out.resize(size);
  return out;
}

// A zlib stream of `mebibytes` MiB of zeros, without its end.
Bytes packed_zeros(int mebibytes) {
  z_stream stream{};
  REQUIRE(::deflateInit(&stream, 9) == Z_OK);
  const auto deflated = [&](Bytes bytes) {
    Bytes out(bytes.size() + 1024);
    stream.next_in = bytes.data();
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = out.data();
    stream.avail_out = static_cast<uInt>(out.size());
    REQUIRE(::deflate(&stream, Z_FULL_FLUSH) == Z_OK);
    return Bytes(out.begin(), out.end() - static_cast<long>(stream.avail_out));
  };
  Bytes out = deflated({0});                     // includes the stream's header
  const Bytes zeros = deflated(Bytes(1 << 20));  // the full flush makes it repeatable
  ::deflateEnd(&stream);
  for (int i = 0; i < mebibytes; ++i) append(out, zeros);
  return out;
}

// A grey PNG of width x height with these chunks before and after its image data.
Bytes png(std::uint32_t width, std::uint32_t height, const Bytes& before, const Bytes& image, const Bytes& behind,
          bool interlaced = false) {
  Bytes out{0x89, 'P', 'N', 'G', 13, 10, 26, 10};
  Bytes header = big_endian(width, 4);
  append(header, big_endian(height, 4));
  append(header, {8, 0, 0, 0, interlaced});  // bit depth, grey, deflate, filters, interlacing
  append(out, chunk("IHDR", header));
  append(out, before);
  append(out, chunk("IDAT", image));
  append(out, behind);
  append(out, chunk("IEND", {}));
  return out;
}

// A progressive grey JPEG of side x side. Each scan codes only empty blocks.
Bytes jpeg(int side, int scans) {
  Bytes out{0xff, 0xd8, 0xff, 0xdb, 0, 67, 0};
  append(out, Bytes(64, 1));
  append(out, {0xff, 0xc2, 0, 11, 8});
  append(out, big_endian(static_cast<std::uint64_t>(side), 2));
  append(out, big_endian(static_cast<std::uint64_t>(side), 2));
  append(out, {1, 1, 0x11, 0});
  // One code, 0: a run of at least 2^14 end-of-block blocks; 14 more bits give its exact length.
  append(out, {0xff, 0xc4, 0, 20, 0x10, 1});
  append(out, Bytes(15));
  out.push_back(0xe0);
  const int blocks = side / 8 * (side / 8);
  for (int scan = 0; scan < scans; ++scan) {
    const std::uint8_t refined = scan == 0 ? 0x01 : 0x10;
    append(out, {0xff, 0xda, 0, 8, 1, 1, 0, 1, 63, refined});
    std::string bits;
    for (int run = 0; run * 32767 < blocks; ++run) bits += "0" + std::string(14, '1');
    bits.resize((bits.size() + 7) / 8 * 8, '1');
    for (std::size_t i = 0; i < bits.size(); i += 8) {
      out.push_back(static_cast<std::uint8_t>(std::stoi(bits.substr(i, 8), nullptr, 2)));
      if (out.back() == 0xff) out.push_back(0);
    }
  }
  append(out, {0xff, 0xd9});
  return out;
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Decodes the image within 2 s of CPU time. Returns the error text, or an empty string.
std::string quickly(const Bytes& bytes, Bytes* pixels = nullptr) {
  dp::RgbImage image;
  std::string refusal;
  const double begin = cpu_seconds();
  try {
    dp::decode_image("bomb", bytes, image);
    if (pixels) *pixels = image.pixels;
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::data);
    refusal = error.what();
  }
  CHECK(cpu_seconds() - begin < 2);
  return refusal;
}

}  // namespace

TEST_CASE("compressed texts and profiles in a PNG are never unpacked, whatever their number") {
  const Bytes zeros = packed(Bytes(7'900'000));  // libpng's own limit for one chunk is 8 MB
  Bytes compressed_text = text(std::string("Comment\0\0", 9)),
        international = text(std::string("Comment\0\1\0\0\0", 12)), profile = text(std::string("icc\0\0", 5));
  for (Bytes* data : {&compressed_text, &international, &profile}) append(*data, zeros);
  const Bytes pixels = packed({0, 17, 34, 0, 51, 68}), expected{17, 17, 17, 34, 34, 34, 51, 51, 51, 68, 68, 68};
  for (const Bytes& bomb : {chunk("zTXt", compressed_text), chunk("iTXt", international), chunk("iCCP", profile)}) {
    INFO(std::string(bomb.begin() + 4, bomb.begin() + 8));
    Bytes many;
    for (int i = 0; i < 256; ++i) append(many, bomb);
    Bytes before, behind;
    CHECK(quickly(png(2, 2, many, pixels, {}), &before).empty());
    CHECK(before == expected);
    CHECK(quickly(png(2, 2, {}, pixels, many), &behind).empty());
    CHECK(behind == expected);
  }
}

TEST_CASE("a PNG may be wider than libpng's own limit of a million pixels") {
  constexpr std::uint32_t kMany = 1'000'001;
  Bytes row(kMany + 1, 50), wide;
  row.front() = 0;  // the filter of the row
  CHECK(quickly(png(kMany, 1, {}, packed(row), {}), &wide).empty());
  CHECK((wide == Bytes(3 * kMany, 50)));
}

TEST_CASE("PNG image data beyond the last row are not unpacked") {
  const Bytes bomb = packed_zeros(256), slack = packed_zeros(1);
  REQUIRE(bomb.size() < 500'000);
  for (const bool interlaced : {false, true})
    for (const auto& [width, height] :
         std::initializer_list<std::pair<std::uint32_t, std::uint32_t>>{{1, 1}, {2, 2}, {1, 9}, {5, 3}, {100, 37}}) {
      INFO(width << "x" << height << ", interlaced " << interlaced);
      CHECK_THAT(quickly(png(width, height, {}, bomb, {}, interlaced)), Catch::Contains("more image data than rows"));
      CHECK_THAT(quickly(png(width, height, {}, slack, {}, interlaced)), !Catch::Contains("more image data"));
    }
}

TEST_CASE("a large JPEG with very many scans is rejected") {
  CHECK_THAT(quickly(jpeg(8192, 100)), Catch::Contains("expected at most 16 scans, found 100"));
  CHECK(quickly(jpeg(64, 100)).empty());
  CHECK_THAT(quickly(jpeg(64, 600)), Catch::Contains("scans"));
}
