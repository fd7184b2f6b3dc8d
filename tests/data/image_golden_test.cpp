// Decoding, resizing and cropping against values from Pillow and torchvision (golden/make_images.py).
#include <cstdlib>
#include <map>

#include "data/augment/crops.h"
#include "data/formats/rgb_image.h"
#include "data/image_files.h"
#include "dp/checkpoint.h"
#include "support/catch.h"

using dp::Interpolation;

namespace {

constexpr std::int64_t kSide = 21;

const std::map<std::string, dp::Tensor>& golden() {
  static const auto tensors = [] {
    std::map<std::string, dp::Tensor> all;
    for (auto& [name, tensor] : dp::read_safetensors(DP_GOLDEN_IMAGES)) all.emplace(name, tensor);
    return all;
  }();
  return tensors;
}

dp::RgbImage decoded(const std::string& name) {
  dp::RgbImage image;
  dp::decode_image(name, dp::test::corpus_image(name), image);
  return image;
}

dp::RgbView view(const dp::RgbImage& image) {
  return {image.pixels.data(), image.width, image.height, 3 * image.width};
}

struct Difference {
  int largest = 0;
  std::size_t unequal = 0, total = 0;

  void add(std::span<const std::uint8_t> ours, std::span<const std::uint8_t> theirs) {
    REQUIRE(ours.size() == theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const int by = std::abs(ours[i] - theirs[i]);
      largest = std::max(largest, by);
      unequal += by != 0;
    }
    total += ours.size();
  }
};

}  // namespace

TEST_CASE("the bytes to decode an image are those of its pixels, with the coefficients of a JPEG of several scans") {
  for (const std::string& name : dp::test::corpus_names()) {
    INFO(name);
    const dp::RgbImage image = decoded(name);
    const auto pixels = static_cast<std::size_t>(image.width * image.height);
    const std::size_t bytes = dp::bytes_to_decode(dp::test::corpus_image(name));
    if (name == "jpeg_progressive")
      CHECK((bytes == 6 * pixels || bytes == 9 * pixels));  // by its subsampling
    else
      CHECK(bytes == (name.starts_with("webp_lossless") ? 7 : name == "jpeg_cmyk" ? 4 : 3) * pixels);
  }
  CHECK(dp::bytes_to_decode({}) == 0);
  CHECK(dp::bytes_to_decode(std::vector<std::uint8_t>{0xff, 0xd8, 0xff, 0xe0}) == 0);
  CHECK(dp::bytes_to_decode(std::vector<std::uint8_t>{0x89, 'P', 'N', 'G', 1, 2, 3}) == 0);
}

TEST_CASE("decoded pixels equal Pillow's for every kind of JPEG, PNG and WebP") {
  int compared = 0;
  for (const std::string& name : dp::test::corpus_names()) {
    const auto found = golden().find(name + ".rgb");
    if (found == golden().end()) continue;
    INFO(name);
    const dp::RgbImage image = decoded(name);
    REQUIRE(found->second.shape() == dp::Shape{image.height, image.width, 3});
    const auto expected = found->second.span<std::uint8_t>();
    CHECK(std::equal(image.pixels.begin(), image.pixels.end(), expected.begin(), expected.end()));
    ++compared;
  }
  CHECK(compared == 19);
}

TEST_CASE("the central crop for evaluation equals torchvision's within one grey level") {
  Difference difference;
  std::vector<std::uint8_t> out(3 * kSide * kSide);
  dp::Resizer resizer;
  for (const std::string& name : dp::test::corpus_names()) {
    INFO(name);
    const dp::RgbImage image = decoded(name);
    const dp::CentralCrop crop = dp::central_crop(image.width, image.height, kSide, 0.875);
    resizer.resize(view(image), crop.width, crop.height, crop.window, Interpolation::bilinear, out);
    difference.add(out, golden().at(name + ".eval").span<std::uint8_t>());
    REQUIRE(difference.largest <= 1);
  }
  CHECK(difference.total == 20 * out.size());
  CHECK(difference.unequal * 1000 <= difference.total);  // at most one value in a thousand may round differently
}

TEST_CASE("a resized crop equals torchvision's within one grey level, given the same crop") {
  Difference difference;
  std::vector<std::uint8_t> out(3 * kSide * kSide);
  dp::Resizer resizer;
  for (const std::string& name : dp::test::corpus_names())
    for (const char* k : {"0", "1"}) {
      if (name.starts_with("webp")) continue;  // only their decoding is of another kind
      INFO(name << " crop " << k);
      const dp::RgbImage image = decoded(name);
      const auto box = golden().at(name + ".box" + k).span<std::int64_t>();
      resizer.resize(view(image).part({box[0], box[1], box[2], box[3]}), kSide, kSide, {0, 0, kSide, kSide},
                     Interpolation::bilinear, out);
      difference.add(out, golden().at(name + ".crop" + k).span<std::uint8_t>());
      REQUIRE(difference.largest <= 1);
    }
  CHECK(difference.total == 32 * out.size());
  CHECK(difference.unequal * 1000 <= difference.total);
}

TEST_CASE("nearest and bicubic resizing for evaluation and training have Pillow's bits") {
  Difference difference;
  std::vector<std::uint8_t> out(3 * kSide * kSide);
  dp::Resizer resizer;
  for (const auto& [mode, crop_pct] :
       {std::pair("nearest", 1.0), std::pair("bicubic", 0.95), std::pair("bicubic", 0.7)}) {
    const Interpolation by = mode == std::string("nearest") ? Interpolation::nearest : Interpolation::bicubic;
    for (const std::string& name : dp::test::corpus_names()) {
      const std::string suffix = std::string("_") + mode;
      INFO(name << suffix << " " << crop_pct);
      const dp::RgbImage image = decoded(name);
      const dp::CentralCrop crop = dp::central_crop(image.width, image.height, kSide, crop_pct);
      resizer.resize(view(image), crop.width, crop.height, crop.window, by, out);
      const std::string key = name + ".eval" + suffix + (crop_pct < 0.9 ? "_070" : "");
      difference.add(out, golden().at(key).span<std::uint8_t>());
      REQUIRE(difference.unequal == 0);
      const auto boxed = golden().find(name + ".crop0" + suffix);
      if (boxed == golden().end() || crop_pct < 0.9) continue;
      const auto box = golden().at(name + ".box0").span<std::int64_t>();
      resizer.resize(view(image).part({box[0], box[1], box[2], box[3]}), kSide, kSide, {0, 0, kSide, kSide}, by, out);
      difference.add(out, boxed->second.span<std::uint8_t>());
      REQUIRE(difference.unequal == 0);
    }
  }
  CHECK(difference.total == (3 * 20 + 2 * 16) * out.size());
}

TEST_CASE("resizing to the same size changes nothing, and a window is a part of the whole") {
  const dp::RgbImage image = decoded("png_rgb");  // 39x34
  dp::Resizer resizer;
  std::vector<std::uint8_t> same(image.pixels.size());
  std::vector<std::uint8_t> whole(3 * 60 * 17), window(3 * 20 * 5);
  for (const Interpolation by : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic}) {
    resizer.resize(view(image), 39, 34, {0, 0, 39, 34}, by, same);
    for (std::size_t i = 0; i < same.size(); ++i) REQUIRE(same[i] == image.pixels[i % (39 * 34) * 3 + i / (39 * 34)]);

    resizer.resize(view(image), 60, 17, {0, 0, 60, 17}, by, whole);
    resizer.resize(view(image), 60, 17, {31, 9, 20, 5}, by, window);
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t y = 0; y < 5; ++y)
        for (std::size_t x = 0; x < 20; ++x)
          REQUIRE(window[(c * 5 + y) * 20 + x] == whole[(c * 17 + y + 9) * 60 + x + 31]);
  }
}
