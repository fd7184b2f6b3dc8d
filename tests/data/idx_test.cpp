#include "data/formats/idx.h"

#include <functional>
#include <numeric>

#include "data/idx_bytes.h"
#include "data/refusal.h"
#include "support/catch.h"

using dp::test::Bytes;
using dp::test::gzip;
using dp::test::idx_images;
using dp::test::idx_labels;

namespace {

std::shared_ptr<const dp::Dataset> read(const Bytes& images, const Bytes& labels) {
  dp::MemoryReader image_source("images", images), label_source("labels", labels);
  return dp::read_idx(image_source, label_source, {28, 28, 10}, {{0.1f}, {0.3f}});
}

std::string refusal(const Bytes& images, const Bytes& labels) {
  const std::string message = dp::test::data_refusal([&] { read(images, labels); });
  CHECK_THAT(message, Catch::Contains("--dataset digits"));
  return message;
}

Bytes first(const Bytes& bytes, std::size_t count) { return {bytes.begin(), bytes.begin() + static_cast<long>(count)}; }
Bytes with(Bytes bytes, std::size_t offset, std::uint8_t value) {
  bytes.at(offset) = value;
  return bytes;
}
Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void check_content(const dp::Dataset& dataset, std::int64_t count) {
  REQUIRE(dataset.size() == count);
  CHECK(dataset.image_shape() == dp::Shape{1, 28, 28});
  CHECK(dataset.classes() == 10);
  for (std::int64_t i = 0; i < count; ++i) {
    REQUIRE(dataset.label(i) == i % 10);
    REQUIRE(dataset.image(i).size() == 784);
    REQUIRE(dataset.image(i)[783] == (i * 784 + 783) % 251);
  }
}

}  // namespace

TEST_CASE("IDX files are read plain, gzipped, mixed, and gzipped in several members") {
  const Bytes images = idx_images(100), labels = idx_labels(100);
  check_content(*read(images, labels), 100);
  check_content(*read(gzip(images), gzip(labels)), 100);
  check_content(*read(gzip(images), labels), 100);
  check_content(*read(joined(gzip(first(images, 5000)), gzip(Bytes(images.begin() + 5000, images.end()))), labels),
                100);
}

TEST_CASE("a small IDX file cut at any byte is rejected at that byte") {
  const Bytes images = idx_images(1), labels = idx_labels(1);
  for (std::size_t cut = 0; cut < images.size(); ++cut)
    REQUIRE_THAT(refusal(first(images, cut), labels), Catch::StartsWith("images: byte " + std::to_string(cut) + ":"));
  for (std::size_t cut = 0; cut < labels.size(); ++cut)
    REQUIRE_THAT(refusal(images, first(labels, cut)), Catch::StartsWith("labels: byte " + std::to_string(cut) + ":"));
}

TEST_CASE("a small gzip file cut at any byte is rejected") {
  const Bytes images = gzip(idx_images(2)), labels = gzip(idx_labels(2));
  for (std::size_t cut = 0; cut < images.size(); ++cut)
    REQUIRE_THAT(refusal(first(images, cut), labels), Catch::StartsWith("images"));
  for (std::size_t cut = 0; cut < labels.size(); ++cut)
    REQUIRE_THAT(refusal(images, first(labels, cut)), Catch::StartsWith("labels"));
}

TEST_CASE("every flipped bit of an IDX header is rejected with the file's name") {
  const Bytes images = idx_images(3), labels = idx_labels(3);
  for (std::size_t byte = 0; byte < 16; ++byte)
    for (int bit = 0; bit < 8; ++bit)
      REQUIRE_THAT(refusal(with(images, byte, static_cast<std::uint8_t>(images[byte] ^ (1 << bit))), labels),
                   Catch::StartsWith("images: byte "));
  for (std::size_t byte = 0; byte < 8; ++byte)
    for (int bit = 0; bit < 8; ++bit)
      REQUIRE_THAT(refusal(images, with(labels, byte, static_cast<std::uint8_t>(labels[byte] ^ (1 << bit)))),
                   Catch::StartsWith("labels: byte "));
}

TEST_CASE("flipped bytes of gzip data never give other images") {
  // Flips in the gzip member's time, flags and system bytes are legal. The checksum detects all other flips.
  const Bytes plain = idx_images(2), packed = gzip(plain), labels = idx_labels(2);
  int refused = 0;
  for (std::size_t byte = 0; byte < packed.size(); ++byte) {
    try {
      check_content(*read(with(packed, byte, packed[byte] ^ 0xff), labels), 2);
    } catch (const dp::Error& error) {
      REQUIRE(error.code() == dp::ErrorCode::data);
      ++refused;
    }
  }
  CHECK(refused >= static_cast<int>(packed.size()) - 6);
}

TEST_CASE("errors of an IDX file name the file, the byte, the expectation and the remedy") {
  const Bytes images = idx_images(3), labels = idx_labels(3), packed = gzip(images);
  Bytes corrupt = packed, wrong_checksum = packed;
  corrupt[10] |= 6;  // deflate block type 3 is reserved
  wrong_checksum[packed.size() - 8] ^= 1;
  struct Case {
    Bytes images, labels;
    const char* begin;
    const char* part;
  };
  const Case cases[] = {
      {{}, labels, "images: byte 0: ", "ends within its header of 16 bytes"},
      {images, {}, "labels: byte 0: ", "ends within its header of 8 bytes"},
      {with(images, 0, 0x1f), labels, "images: byte 0: ", "magic number of images 0x00000803, found 0x1f000803"},
      {labels, labels, "images: byte 0: ", "magic number of images 0x00000803, found 0x00000801"},
      {images, images, "labels: byte 0: ", "magic number of labels 0x00000801, found 0x00000803"},
      {idx_images(0), labels, "images: byte 4: ", "at least one image, found 0"},
      {images, idx_labels(0), "labels: byte 4: ", "at least one label, found 0"},
      {idx_images(3, 27), labels, "images: byte 8: ", "row count 28, found 27"},
      {idx_images(3, 28, 32), labels, "images: byte 12: ", "column count 28, found 32"},
      {joined(images, {0}), labels,
       "images: byte 2368: ", "expected 2368 bytes, as the count in its header says, and more follow"},
      {with(images, 7, 4), labels,
       "images: byte 2368: ", "expected 3152 bytes, as the count in its header says, and the file ends here"},
      {with(images, 4, 255), labels, "images: byte 2368: ", "and the file ends here"},
      {images, with(labels, 7, 2), "labels: byte 10: ", "expected 10 bytes"},
      {images, with(labels, 4, 255), "labels: byte 11: ", "and the file ends here"},
      {idx_images(2), labels, "images: byte 4: ", "expected 3 images, as many as labels in labels, found 2"},
      {idx_images(4), labels, "images: byte 4: ", "found 4"},
      {images, with(labels, 9, 10), "labels: byte 9: ", "expected a label of 0 to 9, found 10"},
      {images, with(labels, 10, 255), "labels: byte 10: ", "found 255"},
      {joined(packed, {0}), labels, "images: byte ", "the gzip data have ended, yet more bytes follow"},
      {joined(packed, {0x1f, 0x00}), labels, "images: byte ", "gzip data are corrupt (incorrect header check)"},
      {joined(packed, gzip({1})), labels, "images (inflated): byte 2368: ", "and more follow"},
      {gzip(joined(images, {0})), labels, "images (inflated): byte 2368: ", "and more follow"},
      {gzip(first(images, 2000)), labels, "images (inflated): byte 2000: ", "the file ends here"},
      {gzip(first(images, 9)), labels, "images (inflated): byte 9: ", "ends within its header"},
      {gzip(labels), labels, "images (inflated): byte 0: ", "found 0x00000801"},
      {gzip({}), labels, "images (inflated): byte 0: ", "ends within its header"},
      {gzip(packed), labels, "images (inflated): byte 0: ", "found 0x1f8b"},
      {first(packed, packed.size() - 1), labels, "images: byte ", "the gzip data end too early"},
      {first(packed, 2), labels, "images: byte 2: ", "the gzip data end too early"},
      {wrong_checksum, labels, "images: byte ", "gzip data are corrupt (incorrect data check)"},
      {corrupt, labels, "images: byte ", "gzip data are corrupt (invalid block type)"},
      {images, gzip(with(labels, 8, 77)), "labels (inflated): byte 8: ", "found 77"},
  };
  // Errors give positions in the compressed file: where the trailing data start, or the end of the file.
  const std::string end = std::to_string(packed.size());
  CHECK_THAT(refusal(joined(packed, {0}), labels), Catch::StartsWith("images: byte " + end + ": "));
  CHECK_THAT(refusal(joined(packed, {0, 0, 0}), labels), Catch::StartsWith("images: byte " + end + ": "));
  CHECK_THAT(refusal(first(packed, 100), labels), Catch::StartsWith("images: byte 100: "));
  for (const Case& c : cases) {
    INFO(c.begin << " ... " << c.part);
    const std::string message = refusal(c.images, c.labels);
    CHECK_THAT(message, Catch::StartsWith(c.begin));
    CHECK_THAT(message, Catch::Contains(c.part));
  }
}
