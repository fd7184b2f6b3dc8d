// How training images are varied. docs/reference/vocabulary.md names the transforms of torchvision.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dp/random.h"
#include "dp/shape.h"

namespace dp {

// Horizontal flips. random: with probability 1/2. alternating: in every other epoch; the first one is drawn for each
// image.
enum class Flip { none, random, alternating };

// Policies that draw operations from a table: RandAugment, TrivialAugmentWide, AugMix.
enum class AutoAugment { none, ra, ta_wide, augmix };

// Of image files that are resized (see Resizing), and of images that are rotated, sheared and shifted. What then comes
// from outside the image is black, and bicubic is bilinear.
enum class Interpolation { nearest, bilinear, bicubic };

// Factors are drawn from 1 - x to 1 + x, and at least 0; the hue is turned by -hue to hue, where 1 is a full turn.
struct ColorJitter {
  float brightness = 0, contrast = 0, saturation = 0;  // 0 or more
  float hue = 0;                                       // 0 to 0.5

  friend bool operator==(const ColorJitter&, const ColorJitter&) = default;
};

// A step of a program's own.
struct OwnAugmentation {
  std::string name;  // on the command line
  std::string note;  // one line for --help
  // Changes an image (C,H,W) of bytes in place. It must draw all its random numbers from `random`, which depends on
  // (seed, epoch, sample) alone. Loader threads call it at the same time for different images.
  std::function<void(std::span<std::uint8_t> image, const Shape& shape, Random& random)> function;

  friend bool operator==(const OwnAugmentation& a, const OwnAugmentation& b) { return a.name == b.name; }
};

// The augmentations that a program has added, for --own-augmentation.
namespace augmentations {
const std::vector<OwnAugmentation>& registry();
const OwnAugmentation& find(std::string_view name);  // Error(usage) for an unknown name lists the names
void add(OwnAugmentation augmentation);              // as models::add(); Error(usage) too without a function
}  // namespace augmentations

// A data set's augmentation, or changes to it: a member without a value changes nothing. Steps are applied in the order
// of the members, to bytes; `random_erase` comes last, after the normalisation. Random numbers depend on (seed, epoch,
// sample) alone.
struct Augmentation {
  std::optional<std::int64_t> padding{};  // black pixels on every side, then a random crop of the original size
  std::optional<Flip> flip{};
  std::optional<bool> vflip{};      // vertical flip with probability 1/2
  std::optional<float> rotation{};  // by an angle from -rotation to rotation, in degrees, at most 180
  std::optional<AutoAugment> auto_augment{};
  std::optional<std::int64_t> ra_ops{}, ra_magnitude{};  // of RandAugment: 1 to 16, default 2; 0 to 30, default 9
  std::optional<std::int64_t> augmix_severity{};         // of AugMix: 1 to 10, default 3
  std::optional<ColorJitter> color_jitter{};
  std::optional<OwnAugmentation> own{};
  std::optional<float> random_erase{};           // probability that a rectangle is set to 0 in the normalised image
  std::optional<Interpolation> interpolation{};  // default bilinear

  friend bool operator==(const Augmentation&, const Augmentation&) = default;
};

// Members of `changes` that have a value replace those of `augmentation`.
Augmentation changed(Augmentation augmentation, const Augmentation& changes);

// The random crop and horizontal flip of an image. `down` and `right` are the crop's offset in pixels from the corner
// of the unpadded image.
struct Crop {
  std::int64_t down = 0, right = 0;
  bool flip = false;
};

// Draws from the image's own random stream: `Stream` has below(bound), as dp::Random does.
template <typename Stream>
constexpr Crop draw_crop(Stream& random, std::int64_t padding, bool flip) {
  Crop crop;
  if (padding > 0) {
    const auto places = static_cast<std::uint32_t>(2 * padding + 1);
    crop.down = static_cast<std::int64_t>(random.below(places)) - padding;
    crop.right = static_cast<std::int64_t>(random.below(places)) - padding;
  }
  crop.flip = flip && random.below(2) == 1;
  return crop;
}

}  // namespace dp
