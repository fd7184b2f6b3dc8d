// Pad 4, random crop, horizontal flip: the possible results and what determines them.
#include <map>
#include <memory>
#include <set>

#include "data/small_dataset.h"
#include "support/catch.h"

using dp::Loader;
using dp::test::SmallDataset;
using dp::test::whole;

namespace {

constexpr std::int64_t kSide = 12;
const dp::Shape kColour{3, kSide, kSide};

std::map<std::int64_t, std::vector<float>> images_by_sample(const std::shared_ptr<const dp::Dataset>& dataset,
                                                            std::int64_t epoch, const dp::LoaderOptions& options) {
  Loader loader(dataset, options);
  std::map<std::int64_t, std::vector<float>> images;
  for (const auto& batch : whole(loader, epoch)) {
    const std::size_t size = batch.images.size() / batch.samples.size();
    for (std::size_t row = 0; row < batch.samples.size(); ++row)
      images[batch.samples[row]].assign(batch.images.begin() + static_cast<long>(row * size),
                                        batch.images.begin() + static_cast<long>((row + 1) * size));
  }
  return images;
}

// The crop of the padded image at this offset from the centre.
std::vector<float> cropped(const std::vector<float>& plain, std::int64_t down, std::int64_t right, bool flip) {
  const float black = (0 - 0.25f) / 0.5f;
  std::vector<float> out;
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t y = 0; y < kSide; ++y)
      for (std::int64_t x = 0; x < kSide; ++x) {
        const std::int64_t from_y = y + down, from_x = (flip ? kSide - 1 - x : x) + right;
        const bool inside = from_y >= 0 && from_y < kSide && from_x >= 0 && from_x < kSide;
        out.push_back(inside ? plain[static_cast<std::size_t>((c * kSide + from_y) * kSide + from_x)] : black);
      }
  return out;
}

}  // namespace

TEST_CASE("an augmented image is one of the 81 crops, flipped or not, and all of them occur") {
  const auto dataset = std::make_shared<SmallDataset>(40, kColour);
  const auto plain = images_by_sample(dataset, 0, {.batch_size = 7});
  std::set<std::int64_t> downs, rights;
  int flips = 0, found = 0;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch)
    for (const auto& [sample, image] : images_by_sample(dataset, epoch, {.batch_size = 7, .augment = true}))
      for (std::int64_t down = -4; down <= 4; ++down)
        for (std::int64_t right = -4; right <= 4; ++right)
          for (const bool flip : {false, true})
            if (image == cropped(plain.at(sample), down, right, flip)) {
              ++found;
              downs.insert(down);
              rights.insert(right);
              flips += flip;
            }
  CHECK(found == 3 * 40);
  CHECK(downs.size() == 9);
  CHECK(rights.size() == 9);
  CHECK(std::abs(flips - 60) < 25);
}

TEST_CASE("augmentation depends on seed, epoch and sample, not on the batch") {
  const auto dataset = std::make_shared<SmallDataset>(40, kColour);
  const dp::LoaderOptions options{.batch_size = 7, .augment = true};
  auto other_batches = options, other_seed = options;
  other_batches.batch_size = 40;
  other_batches.shuffle = false;
  other_batches.workers = 3;
  other_seed.seed = 43;
  const auto images = images_by_sample(dataset, 1, options);
  CHECK(images == images_by_sample(dataset, 1, other_batches));
  CHECK(images != images_by_sample(dataset, 2, options));
  CHECK(images != images_by_sample(dataset, 1, other_seed));
}

TEST_CASE("images are augmented as their data set specifies, for any number of channels") {
  const auto dataset = std::make_shared<SmallDataset>(20, dp::Shape{1, 28, 28});
  const auto plain = images_by_sample(dataset, 0, {});
  const auto augmented = [&](dp::Augmentation augmentation) {
    dataset->augmentation_ = augmentation;
    return images_by_sample(dataset, 0, {.augment = true});
  };
  CHECK(augmented({}) == plain);
  CHECK(augmented({.padding = 1}) != plain);
  int flipped = 0;
  for (const auto& [sample, image] : augmented({.flip = dp::Flip::random})) {
    std::vector<float> mirror;
    for (std::size_t i = 0; i < image.size(); ++i) mirror.push_back(image[i / 28 * 28 + 27 - i % 28]);
    const bool same = image == plain.at(sample);
    CHECK((same || mirror == plain.at(sample)));
    flipped += !same;
  }
  CHECK(flipped > 2);
  CHECK(flipped < 18);
}

namespace {

// Draws one number from the sample's stream for each image that it reads.
class Drawing final : public dp::Dataset {
 public:
  std::int64_t size() const override { return 50; }
  dp::Shape image_shape() const override { return dp::Shape{1, 1, 2}; }
  std::int64_t classes() const override { return 1; }
  const dp::Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t) const override { return 0; }
  void read(std::int64_t, std::span<std::uint8_t> out, dp::Random* random) const override {
    out[0] = random ? static_cast<std::uint8_t>(random->below(255)) : 255;
    out[1] = 0;
  }
  dp::Augmentation augmentation() const override { return {.flip = dp::Flip::random}; }

 private:
  dp::Normalization normalization_{{0}, {1}};
};

}  // namespace

TEST_CASE("a data set that augments while reading draws first from the sample's random stream") {
  const auto dataset = std::make_shared<Drawing>();
  for (const auto& [sample, image] : images_by_sample(dataset, 3, {.seed = 5}))
    CHECK(image == std::vector<float>{1.0f, 0.0f});  // no stream without augmentation
  for (const auto& [sample, image] : images_by_sample(dataset, 3, {.augment = true, .seed = 5})) {
    dp::Random random(5, dp::RandomUse::augment, 3, static_cast<std::uint64_t>(sample));
    const float value = static_cast<float>(random.below(255)) / 255.0f;
    const bool flip = random.below(2) == 1;
    CHECK(image == (flip ? std::vector<float>{0, value} : std::vector<float>{value, 0}));
  }
}
