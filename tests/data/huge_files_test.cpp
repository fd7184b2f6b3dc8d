// Files that are far larger than their header allows are refused by size, without reading them to the end. Also files
// that shrink during the read.
#include <filesystem>
#include <stdexcept>

#include "data/cifar_bytes.h"
#include "data/formats/idx.h"
#include "data/idx_bytes.h"
#include "data/refusal.h"
#include "dp/dataset.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::Bytes;
using dp::test::data_refusal;
using dp::test::idx_images;
using dp::test::idx_labels;
using dp::test::TemporaryFolder;

namespace {

constexpr std::uint64_t kTebibyte = std::uint64_t{1} << 40;
constexpr std::uint32_t kMany = 1'400'000'000;  // images take about 1 TiB

// The given bytes, then zeros up to `size`. Throws std::logic_error if the caller reads more than 1 MiB.
class Endless final : public dp::ByteReader {
 public:
  Endless(Bytes begin, std::uint64_t size) : begin_(std::move(begin)), size_(size) {}

  std::size_t read(std::span<std::uint8_t> out) override {
    if (at_ + out.size() > (1 << 20)) throw std::logic_error("reads on and on");
    for (std::uint8_t& byte : out) byte = at_ < begin_.size() ? begin_[at_] : 0, ++at_;
    return out.size();
  }
  void rewind() override { at_ = 0; }
  const std::string& name() const override { return name_; }
  std::optional<std::uint64_t> size() const override { return size_; }

 private:
  std::string name_ = "huge";
  Bytes begin_;
  std::uint64_t size_;
  std::size_t at_ = 0;
};

// Reports the size of these bytes, but yields one byte less.
class Shrinking final : public dp::ByteReader {
 public:
  explicit Shrinking(const Bytes& bytes)
      : size_(bytes.size()), reader_("shrinking", std::span(bytes).first(size_ - 1)) {}

  std::size_t read(std::span<std::uint8_t> out) override { return reader_.read(out); }
  void rewind() override { reader_.rewind(); }
  const std::string& name() const override { return reader_.name(); }
  std::optional<std::uint64_t> size() const override { return size_; }

 private:
  std::size_t size_;
  dp::MemoryReader reader_;
};

Bytes header_of(const Bytes& file, std::size_t bytes, std::uint32_t count) {
  Bytes header(file.begin(), file.begin() + static_cast<long>(bytes));
  for (std::size_t i = 0; i < 4; ++i) header[4 + i] = static_cast<std::uint8_t>(count >> (24 - 8 * i));
  return header;
}
Bytes images_header(std::uint32_t count) { return header_of(idx_images(1), 16, count); }
Bytes labels_header(std::uint32_t count) { return header_of(idx_labels(1), 8, count); }

std::string idx_refusal(dp::ByteReader& images, dp::ByteReader& labels) {
  return data_refusal([&] { dp::read_idx(images, labels, {28, 28, 10}, {{0.1f}, {0.3f}}); });
}

void write_sparse(const TemporaryFolder& folder, const std::string& name, const Bytes& begin, std::uint64_t size) {
  folder.write(name, begin);
  std::filesystem::resize_file(folder / name, size);
}

}  // namespace

TEST_CASE("an IDX file whose size contradicts its header is rejected unread") {
  const Bytes few = idx_labels(3);
  dp::MemoryReader labels("labels", few);
  Endless images(images_header(3), kTebibyte);
  CHECK_THAT(idx_refusal(images, labels),
             Catch::StartsWith("huge: byte 2368: expected 2368 bytes") && Catch::Contains("and more follow"));
  const Bytes small = idx_images(3);
  dp::MemoryReader small_images("images", small);
  Endless many_labels(labels_header(3), kTebibyte);
  CHECK_THAT(idx_refusal(small_images, many_labels), Catch::StartsWith("huge: byte 11: expected 11 bytes"));
}

TEST_CASE("an IDX file that exceeds memory is rejected unread") {
  Endless images(images_header(kMany), 16 + std::uint64_t{kMany} * 784), labels(labels_header(kMany), 8 + kMany);
  CHECK_THAT(idx_refusal(images, labels), Catch::StartsWith("huge: byte 4: ") && Catch::Contains("bytes of memory"));
  const Bytes packed = dp::test::gzip(images_header(kMany));
  dp::MemoryReader packed_images("packed", packed);
  CHECK_THAT(idx_refusal(packed_images, labels),
             Catch::StartsWith("packed (inflated): byte 4: ") && Catch::Contains("bytes of memory"));
}

TEST_CASE("a CIFAR file of another size is rejected unread") {
  Bytes good = dp::test::cifar_records(2, 1);
  good[0] = 99;  // a bad label, which is found later than a bad size
  for (const bool first : {true, false}) {
    dp::MemoryReader small("small", good);
    Endless huge(good, kTebibyte);
    dp::ByteReader* const files[] = {first ? static_cast<dp::ByteReader*>(&huge) : &small,
                                     first ? static_cast<dp::ByteReader*>(&small) : &huge};
    CHECK_THAT(data_refusal([&] {
                 dp::read_cifar(files, {dp::test::kTenClasses, 2}, {{0, 0, 0}, {1, 1, 1}});
               }),
               Catch::StartsWith("huge: byte 6146: expected 6146 bytes") && Catch::Contains("and more follow"));
  }
}

TEST_CASE("sparse files of a tebibyte are rejected in place of MNIST and CIFAR files") {
  const TemporaryFolder folder;
  for (const char* name : {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) folder.write(name, {});
  const auto refusal_of = [&](std::uint32_t count, std::uint64_t size) {
    write_sparse(folder, "train-images-idx3-ubyte", images_header(count), size);
    write_sparse(folder, "train-labels-idx1-ubyte", labels_header(count), 8 + count);
    return data_refusal([&] { dp::datasets::mnist(folder.path()); });
  };
  CHECK_THAT(refusal_of(60000, kTebibyte), Catch::Contains("train-images-idx3-ubyte: byte 47040016: "));
  CHECK_THAT(refusal_of(kMany, 16 + std::uint64_t{kMany} * 784), Catch::Contains("bytes of memory"));
  for (const char* name : {"train.bin", "test.bin"}) write_sparse(folder, name, {}, kTebibyte);
  CHECK_THAT(data_refusal([&] { dp::datasets::cifar100(folder.path()); }),
             Catch::Contains("train.bin: byte 153700000: "));
}

TEST_CASE("a file that shrinks while it is read is rejected where it ends") {
  const Bytes image_bytes = idx_images(3), label_bytes = idx_labels(3), records = dp::test::cifar_records(2, 1);
  dp::MemoryReader images("images", image_bytes), labels("labels", label_bytes);
  Shrinking short_images(image_bytes), short_labels(label_bytes), short_records(records);
  CHECK_THAT(idx_refusal(short_images, labels), Catch::StartsWith("shrinking: byte 2367: the file became shorter"));
  CHECK_THAT(idx_refusal(images, short_labels), Catch::StartsWith("shrinking: byte 10: the file became shorter"));
  dp::ByteReader* const files[] = {&short_records};
  CHECK_THAT(
      data_refusal([&] {
        dp::read_cifar(files, {dp::test::kTenClasses, 2}, {{0, 0, 0}, {1, 1, 1}});
      }),
      Catch::StartsWith("shrinking: byte 6145: ") && Catch::Contains("the file was truncated here while it was read"));
}
