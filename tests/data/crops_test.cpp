// The position and size of crops.
#include "data/augment/crops.h"

#include <cmath>

#include "support/catch.h"

using dp::central_crop;
using dp::random_resized_crop;
using dp::Region;

TEST_CASE("random crops have 8 to 100 % of the image's area and ratios of 3:4 to 4:3, at any position") {
  dp::Random random(3, dp::RandomUse::augment);
  constexpr int kDraws = 4000;
  constexpr std::int64_t kWidth = 500, kHeight = 375;
  double area = 0, log_ratio = 0, x = 0, y = 0, smallest = 1, largest = 0;
  for (int i = 0; i < kDraws; ++i) {
    const Region r = random_resized_crop(kWidth, kHeight, random);
    REQUIRE((r.left >= 0 && r.top >= 0 && r.width > 0 && r.height > 0));
    REQUIRE((r.left + r.width <= kWidth && r.top + r.height <= kHeight));
    const double part = static_cast<double>(r.width * r.height) / (kWidth * kHeight);
    const double ratio = static_cast<double>(r.width) / static_cast<double>(r.height);
    REQUIRE(part > 0.075);
    REQUIRE(ratio > 0.74);
    REQUIRE(ratio < 1.35);
    smallest = std::min(smallest, part);
    largest = std::max(largest, part);
    area += part / kDraws;
    log_ratio += std::log(ratio) / kDraws;
    x += (static_cast<double>(r.left) + static_cast<double>(r.width) / 2) / kWidth / kDraws;
    y += (static_cast<double>(r.top) + static_cast<double>(r.height) / 2) / kHeight / kDraws;
  }
  CHECK(smallest < 0.1);
  CHECK(largest > 0.95);
  CHECK(area == Approx(0.4356).margin(0.012));  // torchvision's means over 6,000 draws
  CHECK(log_ratio == Approx(0.0333).margin(0.01));
  CHECK(x == Approx(0.5).margin(0.02));
  CHECK(y == Approx(0.5).margin(0.02));
}

TEST_CASE("an image too narrow for ten tries gives its largest central part of ratio 3:4 or 4:3") {
  dp::Random random(4, dp::RandomUse::augment);
  for (int i = 0; i < 50; ++i) {
    CHECK(random_resized_crop(1000, 3, random) == Region{498, 0, 4, 3});
    CHECK(random_resized_crop(3, 1000, random) == Region{0, 498, 3, 4});
    CHECK(random_resized_crop(1, 1, random) == Region{0, 0, 1, 1});
  }
}

TEST_CASE("the central crop equals torchvision's Resize and CenterCrop, with timm's size before the crop") {
  const auto check = [](std::int64_t width, std::int64_t height, std::int64_t side, std::int64_t to_width,
                        std::int64_t to_height, std::int64_t left, std::int64_t top, double crop_pct = 0.875) {
    const dp::CentralCrop crop = central_crop(width, height, side, crop_pct);
    CHECK(crop.width == to_width);
    CHECK(crop.height == to_height);
    CHECK(crop.window == Region{left, top, side, side});
  };
  check(500, 375, 224, 341, 256, 58, 16);  // 58.5, rounded to even
  check(375, 500, 224, 256, 341, 16, 58);
  check(256, 256, 224, 256, 256, 16, 16);
  check(10, 7, 224, 365, 256, 70, 16);  // 70.5, rounded to even
  check(32, 32, 32, 36, 36, 2, 2);
  check(500, 375, 224, 313, 235, 44, 6, 0.95);  // 235.8; 44.5 and 5.5, rounded to even
  check(500, 375, 240, 341, 256, 50, 8, 0.9375);
  check(500, 375, 224, 298, 224, 37, 0, 1);
  check(1, 67108864, 1, 1, 67108864, 0, 33554432);
}
