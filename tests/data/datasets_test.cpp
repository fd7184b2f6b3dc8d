#include <algorithm>
#include <vector>

#include "dp/dataset.h"
#include "dp/error.h"
#include "support/catch.h"

TEST_CASE("an unknown data set is rejected with the valid names") {
  for (const char* bad : {"", "cifar", "CIFAR10", "Digits", "mnist "}) {
    try {
      dp::datasets::find(bad).open(".", 42);
      FAIL("accepted " << bad);
    } catch (const dp::Error& error) {
      CHECK(error.code() == dp::ErrorCode::usage);
      for (const auto& entry : dp::datasets::registry()) CHECK_THAT(error.what(), Catch::Contains(entry.name));
    }
  }
}

TEST_CASE("every data set opens or names the missing files") {
  for (const dp::datasets::Entry& entry : dp::datasets::registry()) {
    INFO(entry.name);
    try {
      const dp::DatasetPair pair = entry.open("/nowhere", 42);
      CHECK(pair.train->image_shape() == entry.image);
      CHECK(pair.train->classes() == entry.classes);
      CHECK(pair.train->size() == 60000);
      CHECK(pair.test->size() == 10000);
    } catch (const dp::Error& error) {
      CHECK(error.code() == dp::ErrorCode::data);
      CHECK_THAT(error.what(),
                 Catch::Contains(entry.name) && Catch::Contains("/nowhere") && Catch::Contains("--data-path"));
    }
  }
}

TEST_CASE("synthetic images have the requested shape and uniform bytes, the same for the same seed") {
  const auto make = [](std::uint64_t seed) { return dp::datasets::synthetic(dp::Shape{3, 5, 7}, 6, 500, 100, seed); };
  const dp::DatasetPair a = make(1), same = make(1), other = make(2);
  REQUIRE(a.train->size() == 500);
  REQUIRE(a.test->size() == 100);
  CHECK(a.train->image_shape() == dp::Shape{3, 5, 7});
  CHECK(a.train->classes() == 6);
  CHECK(a.train->normalization().mean.size() == 3);
  std::vector<int> labels(6);
  double sum = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    const auto image = a.train->image(i);
    REQUIRE(image.size() == 105);
    REQUIRE(std::equal(image.begin(), image.end(), same.train->image(i).begin()));
    REQUIRE_FALSE(std::equal(image.begin(), image.end(), other.train->image(i).begin()));
    if (i < 100) REQUIRE_FALSE(std::equal(image.begin(), image.end(), a.test->image(i).begin()));
    ++labels.at(static_cast<std::size_t>(a.train->label(i)));
    for (const double byte : image) sum += byte;
  }
  for (const int count : labels) CHECK(std::abs(count - 83) < 50);
  CHECK(sum / (500 * 105) == Approx(127.5).margin(2));
}

TEST_CASE("a synthetic image is its label and then the bytes of one random stream, lowest byte first") {
  const dp::DatasetPair pair = dp::datasets::synthetic(dp::Shape{2, 1, 3}, 7, 4, 4, 9);
  for (const std::uint64_t part : {0, 1}) {
    const dp::Dataset& data = part == 0 ? *pair.train : *pair.test;
    CHECK(data.normalization().mean == std::vector<float>{0.5f, 0.5f});
    CHECK(data.normalization().std == std::vector<float>{0.2887f, 0.2887f});
    CHECK_FALSE(data.varies());
    CHECK(data.augmentation() == dp::Augmentation{});
    for (std::int64_t i = 0; i < 4; ++i) {
      dp::Random random(9, dp::RandomUse::synthetic, static_cast<std::uint64_t>(i), part);
      CHECK(data.label(i) == static_cast<std::int32_t>(random.below(7)));
      std::vector<std::uint8_t> bytes;
      for (int word = 0; word < 2; ++word)
        for (std::uint32_t drawn = random.next(), byte = 0; byte < 4; ++byte, drawn >>= 8)
          bytes.push_back(static_cast<std::uint8_t>(drawn));
      bytes.resize(6);
      CHECK(data.image(i) == bytes);
    }
  }
}

TEST_CASE("a synthetic data set may be empty and may have one or very many classes") {
  const dp::DatasetPair none = dp::datasets::synthetic(dp::Shape{1, 1, 1}, 2147483647, 0, 0);
  CHECK(none.train->size() == 0);
  CHECK(none.test->size() == 0);
  CHECK(none.train->classes() == 2147483647);
  CHECK(dp::datasets::synthetic(dp::Shape{1, 1, 1}, 1, 2, 1).train->label(1) == 0);
}

TEST_CASE("synthetic images reject invalid shapes and counts") {
  for (const dp::Shape& shape : {dp::Shape{}, dp::Shape{3}, dp::Shape{1, 2}, dp::Shape{1, 0, 3}, dp::Shape{1, 1, 1, 1}})
    CHECK_THROWS_AS(dp::datasets::synthetic(shape, 2, 1, 1), dp::Error);
  CHECK_THROWS_WITH(dp::datasets::synthetic(dp::Shape{1, 0, 3}, 2, 1, 1),
                    "synthetic: the image shape is (1, 0, 3); give channels, rows and columns, each at least 1");
  const dp::Shape image{1, 2, 2};
  CHECK_THROWS_WITH(dp::datasets::synthetic(image, std::int64_t{1} << 31, 3, 4),
                    "synthetic: 2147483648 classes, 3 and 4 images cannot be made; give 1 to 2147483647 classes and "
                    "counts of 0 or more");
  CHECK_THROWS_AS(dp::datasets::synthetic(image, 0, 1, 1), dp::Error);
  CHECK_THROWS_AS(dp::datasets::synthetic(image, std::int64_t{1} << 32, 1, 1), dp::Error);
  CHECK_THROWS_AS(dp::datasets::synthetic(image, 2, -1, 1), dp::Error);
  CHECK_THROWS_AS(dp::datasets::synthetic(image, 2, 1, -1), dp::Error);
}
