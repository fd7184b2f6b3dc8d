// The binary records of CIFAR-10 and CIFAR-100: valid content and every refusal.
#include "data/datasets/cifar.h"

#include <algorithm>
#include <functional>

#include "data/cifar_bytes.h"
#include "data/datasets/known_files.h"
#include "data/refusal.h"
#include "dp/loader.h"
#include "support/catch.h"

using dp::test::cifar_records;
using dp::test::kHundredClasses;
using dp::test::kTenClasses;

namespace {

using Bytes = std::vector<std::uint8_t>;

const dp::Normalization kPlain{{0, 0, 0}, {1, 1, 1}};

std::shared_ptr<const dp::Dataset> read(const std::vector<Bytes>& files, const dp::CifarFormat& format) {
  std::vector<dp::MemoryReader> sources;
  for (std::size_t i = 0; i < files.size(); ++i) sources.emplace_back("file" + std::to_string(i), files[i]);
  std::vector<dp::ByteReader*> readers;
  for (dp::MemoryReader& source : sources) readers.push_back(&source);
  return dp::read_cifar(readers, format, kPlain);
}

std::string refusal(const std::vector<Bytes>& files, const dp::CifarFormat& format) {
  return dp::test::data_refusal([&] { read(files, format); });
}

Bytes first(const Bytes& bytes, std::size_t count) { return {bytes.begin(), bytes.begin() + static_cast<long>(count)}; }
Bytes with(Bytes bytes, std::size_t offset, std::uint8_t value) {
  bytes.at(offset) = value;
  return bytes;
}

}  // namespace

TEST_CASE("CIFAR records are a label and three planes, file after file") {
  const auto dataset = read({cifar_records(3, 1), cifar_records(3, 1, 7)}, {kTenClasses, 3});
  REQUIRE(dataset->size() == 6);
  CHECK(dataset->classes() == 10);
  CHECK(dataset->image_shape() == dp::Shape{3, 32, 32});
  CHECK(dataset->augmentation() == dp::Augmentation{.padding = 4, .flip = dp::Flip::random});
  const int labels[] = {0, 1, 2, 7, 8, 9};
  for (int i = 0; i < 6; ++i) {
    CHECK(dataset->label(i) == labels[i]);
    const auto image = dataset->image(i);
    for (int k = 0; k < 3072; ++k) REQUIRE(image[static_cast<std::size_t>(k)] == (i % 3 + k) % 251);
  }
}

TEST_CASE("the fine label of CIFAR-100 is the second byte of a record") {
  const auto dataset = read({cifar_records(30, 2, 70)}, {kHundredClasses, 30});
  CHECK(dataset->classes() == 100);
  for (int i = 0; i < 30; ++i) REQUIRE(dataset->label(i) == 70 + i);
  CHECK(dataset->image(29)[0] == 29);
}

TEST_CASE("a CIFAR file cut at any byte is rejected at that byte") {
  const Bytes bytes = cifar_records(2, 1);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut)
    REQUIRE_THAT(refusal({first(bytes, cut)}, {kTenClasses, 2}),
                 Catch::StartsWith("file0: byte " + std::to_string(cut) + ": expected 6146 bytes") &&
                     Catch::Contains("the file ends here"));
}

TEST_CASE("errors of a CIFAR file name the file and the byte") {
  const Bytes ten = cifar_records(2, 1), hundred = cifar_records(2, 2);
  CHECK_THAT(refusal({ten, with(ten, 3073, 10)}, {kTenClasses, 2}),
             Catch::StartsWith("file1: byte 3073: expected a label of 0 to 9, found 10"));
  CHECK_THAT(refusal({with(hundred, 0, 20)}, {kHundredClasses, 2}),
             Catch::StartsWith("file0: byte 0: expected a label of 0 to 19"));
  CHECK_THAT(refusal({with(hundred, 3075, 100)}, {kHundredClasses, 2}),
             Catch::StartsWith("file0: byte 3075: expected a label of 0 to 99, found 100"));
  Bytes longer = ten;
  longer.push_back(0);
  CHECK_THAT(refusal({longer}, {kTenClasses, 2}),
             Catch::StartsWith("file0: byte 6146: ") && Catch::Contains("more follow"));
}

TEST_CASE("CIFAR bytes become augmented batches") {
  const auto dataset = read({cifar_records(20, 1)}, {kTenClasses, 20});
  dp::Loader plain(dataset, {.batch_size = 20, .shuffle = false});
  dp::Loader augmented(dataset, {.batch_size = 20, .shuffle = false, .augment = true});
  plain.start(0);
  augmented.start(0);
  const dp::Batch *a = plain.next(), *b = augmented.next();
  CHECK(a->images.shape() == dp::Shape{20, 3, 32, 32});
  CHECK(a->images.data<float>()[3072 + 1] == Approx(2 / 255.0f));
  const auto left = a->images.span<float>(), right = b->images.span<float>();
  CHECK_FALSE(std::equal(left.begin(), left.end(), right.begin()));
}

TEST_CASE("the classes of CIFAR have names, those of CIFAR-100 in the order of the alphabet") {
  const Bytes file = cifar_records(2, /*label_bytes=*/1);
  const auto named = [&](std::vector<std::string> names) {
    dp::MemoryReader source("file", file);
    std::vector<dp::ByteReader*> readers{&source};
    return dp::read_cifar(readers, {kTenClasses, 2}, kPlain, std::move(names))->class_names();
  };
  CHECK(named({}).empty());
  CHECK(named(dp::cifar10_names()) == dp::cifar10_names());
  CHECK(dp::cifar10_names().size() == 10);
  CHECK(dp::cifar10_names().at(3) == "cat");
  const std::vector<std::string> hundred = dp::cifar100_names();
  CHECK(hundred.size() == 100);
  CHECK(std::adjacent_find(hundred.begin(), hundred.end(), std::greater_equal<>()) == hundred.end());
}

TEST_CASE("a CIFAR file that is another kind of file is recognised") {
  const auto text = [](std::string_view begin, std::size_t size) {
    Bytes bytes(size, '.');
    std::copy(begin.begin(), begin.end(), bytes.begin());
    return bytes;
  };
  CHECK_THAT(refusal({text("<!DOCTYPE html>", 500)}, {kTenClasses, 3}), Catch::Contains("it is an HTML page"));
  CHECK_THAT(refusal({text("PK\x03\x04", 20000)}, {kTenClasses, 3}), Catch::Contains("it is a zip archive"));
  CHECK_THAT(refusal({text("\x80\x02}q", 12)}, {kTenClasses, 3}), Catch::Contains("it is a Python pickle"));
}
