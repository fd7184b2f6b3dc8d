// Images prepared for a prediction: the bits of an evaluation, of Pillow, and refusals.
#include <algorithm>

#include "data/augment/crops.h"
#include "data/image_files.h"
#include "data/refusal.h"
#include "dp/checkpoint.h"
#include "dp/error.h"
#include "dp/image.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::Interpolation;
using dp::test::corpus_image;
using dp::test::corpus_names;
using dp::test::data_refusal;
using dp::test::TemporaryFolder;

namespace {

bool equal(const dp::Tensor& a, const dp::Tensor& b) {
  return a.shape() == b.shape() && std::ranges::equal(a.span<std::uint8_t>(), b.span<std::uint8_t>());
}

const dp::Preprocessing kPlain{{{0.5f}, {0.5f}}, {}};

std::string refusal(const dp::RgbImage& image, const dp::Shape& input) {
  try {
    dp::prepare_image(image, kPlain, input);
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a prepared image has the bits of the data set's evaluation, for every file, size, crop and interpolation") {
  const TemporaryFolder folder;
  for (const std::string& name : corpus_names())
    for (const char* part : {"train", "val"})
      folder.write(std::string(part) + "/class/" + name + ".png", corpus_image(name));  // the content counts
  int compared = 0;
  for (const Interpolation by : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic})
    for (const double crop_pct : {0.5, 0.875, 1.0})
      for (const std::int64_t side : {1, 32, 224}) {
        const dp::Resizing resizing{by, crop_pct};
        const auto test = dp::datasets::image_folder(folder.path(), side, resizing).test;
        const std::vector<std::string> files = dp::image_files(folder / "val");
        REQUIRE(files.size() == static_cast<std::size_t>(test->size()));
        for (std::int64_t i = 0; i < test->size(); ++i) {
          const std::string& file = files[static_cast<std::size_t>(i)];
          INFO(file << " " << side << " " << crop_pct);
          const dp::Tensor ours =
              dp::prepare_image(dp::read_image(file), dp::preprocessing_of(*test), test->image_shape());
          const auto bytes = ours.span<std::uint8_t>();
          const std::vector<std::uint8_t> theirs = test->image(i);
          REQUIRE(std::equal(bytes.begin(), bytes.end(), theirs.begin(), theirs.end()));
          ++compared;
        }
      }
  CHECK(compared == 27 * static_cast<int>(corpus_names().size()));
}

TEST_CASE("without resizing an image is resized to the input without a crop, with Pillow's bits, in colour and grey") {
  int compared = 0;
  for (const auto& [key, expected] : dp::read_safetensors(DP_GOLDEN_PREPARED)) {
    INFO(key);
    const std::string name = key.substr(0, key.find('.'));
    const dp::RgbImage image = dp::decode_image(corpus_image(name));
    const bool grey = key.ends_with(".grey");
    const dp::Tensor ours = dp::prepare_image(image, kPlain, grey ? dp::Shape{1, 20, 28} : dp::Shape{3, 32, 24});
    CHECK(equal(ours, expected.reshaped(ours.shape())));
    ++compared;
  }
  CHECK(compared == 38);
}

TEST_CASE("an image of the input's size is not changed, grey bytes stay as they are") {
  dp::RgbImage image{3, 2, {}};
  for (int i = 0; i < 6; ++i) image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(40 * i + 7));
  const dp::Tensor grey = dp::prepare_image(image, kPlain, {1, 2, 3});
  for (std::size_t i = 0; i < 6; ++i) CHECK(grey.span<std::uint8_t>()[i] == 40 * i + 7);
  const dp::Tensor colour = dp::prepare_image(image, kPlain, {3, 2, 3});
  for (std::size_t i = 0; i < 18; ++i) CHECK(colour.span<std::uint8_t>()[i] == 40 * (i % 6) + 7);
  CHECK(image.pixels.size() == 18);
}

TEST_CASE("an input of other channels or another rank, and an image without its pixels are refused") {
  const dp::RgbImage image{1, 1, {1, 2, 3}};
  CHECK_THAT(refusal(image, {2, 4, 4}), Catch::Contains("one channel or three"));
  CHECK_THAT(refusal(image, {16}), Catch::Contains("one channel or three"));
  CHECK_THAT(refusal({2, 1, {1, 2, 3}}, {3, 4, 4}), Catch::Contains("three bytes for each"));
  CHECK_THAT(refusal({}, {3, 4, 4}), Catch::Contains("three bytes for each"));
}

TEST_CASE("images are decoded from bytes and files, with the name of a bad one") {
  const TemporaryFolder folder;
  folder.write("good", corpus_image("jpeg_420"));
  folder.write("bad.jpg", std::vector<std::uint8_t>{1, 2, 3});
  CHECK(dp::read_image(folder / "good").pixels == dp::decode_image(corpus_image("jpeg_420")).pixels);
  CHECK_THAT(data_refusal([&] { dp::read_image(folder / "bad.jpg"); }),
             Catch::Contains("bad.jpg: neither JPEG nor PNG nor WebP"));
  CHECK_THAT(data_refusal([&] { dp::read_image(folder / "none.jpg"); }), Catch::Contains("none.jpg"));
  CHECK_THAT(data_refusal([&] { dp::read_image(folder.path()); }), Catch::Contains(folder.path()));
  CHECK_THAT(data_refusal([] { dp::decode_image({}, "it"); }), Catch::StartsWith("it: the file is empty"));
}

TEST_CASE("the images of a folder are listed by folder and name, without other files") {
  const TemporaryFolder folder;
  for (const char* name : {"z.jpg", "b/2.PNG", "b/10.webp", "a/x.jpeg", "a/c/y.jpg", "a/notes.txt", ".hidden.jpg"})
    folder.write(name, {});
  const std::string at = folder.path() + "/";
  const std::vector<std::string> expected{at + "z.jpg", at + "a/x.jpeg", at + "a/c/y.jpg", at + "b/10.webp",
                                          at + "b/2.PNG"};
  CHECK(dp::image_files(folder.path()) == expected);
  CHECK(dp::image_files(at) == expected);
  CHECK(dp::image_files(folder / "a/c").size() == 1);
  CHECK_THAT(data_refusal([&] { dp::image_files(folder / "none"); }), Catch::Contains("cannot be listed"));
}
