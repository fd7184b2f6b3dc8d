// Draws of augmentations: RandAugment, TrivialAugmentWide, AugMix, ColorJitter, RandomRotation and RandomErasing of
// torchvision.transforms.v2, and the alternating flip.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/augment/image_ops.h"
#include "dp/augmentation.h"
#include "dp/random.h"
#include "dp/shape.h"

namespace dp {

// Error(usage) that names the option if a value is out of range, or a policy does not fit the images (C,H,W).
void require_valid(const Augmentation& augmentation, const Shape& image);
// The option of a step that only the host can do, such as "--auto-augment ra"; empty if there is none.
std::string only_on_host(const Augmentation& augmentation);
// Whether a step changes the bytes other than by a crop and flips.
bool changes_bytes(const Augmentation& augmentation);

// Whether an alternating flip flips this sample in this epoch.
bool alternates(std::uint64_t seed, std::int64_t epoch, std::int64_t sample);
// A rectangle of 2 to 33 % of the area, uniform. Height to width: 0.3 to 3.3, log-uniform. None if ten tries do not
// fit.
std::optional<Region> random_rectangle(std::int64_t rows, std::int64_t columns, Random& random);

// What the policies choose from. The magnitude of those up to `sharpness` has a random sign.
enum class Operation {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize
};
// torchvision's, in the same order.
inline constexpr std::array<std::string_view, 14> kOperationNames{
    "Identity", "ShearX",   "ShearY",    "TranslateX", "TranslateY", "Rotate",       "Brightness",
    "Color",    "Contrast", "Sharpness", "Posterize",  "Solarize",   "AutoContrast", "Equalize"};

// Magnitudes have 31 bins, those of AugMix 10. Operations without a magnitude have 0.
double magnitude_of(AutoAugment policy, Operation operation, int bin, std::int64_t rows, std::int64_t columns);
// Changes the image. `spare`: image.size() bytes.
void apply(Planes image, Operation operation, double magnitude, Interpolation interpolation, std::uint8_t* spare);

struct Drawn {
  Operation operation;
  double magnitude;
};
// The next operation of the policy.
Drawn draw_operation(const Augmentation& augmentation, std::int64_t rows, std::int64_t columns, Random& random);

// A weighted sum of images, for AugMix.
void begin_mix(Planes image, float weight, float* mix);
void add_to_mix(Planes image, float weight, float* mix);
void end_mix(const float* mix, Planes image);

// Bytes that vary() needs besides the image.
std::size_t spare_bytes(const Augmentation& augmentation, std::int64_t image_bytes);
// Bytes of a thread that reads and varies images.
std::size_t scratch_bytes(const Augmentation& augmentation, std::int64_t image_bytes);
// Rotates, applies the policy, jitters the colours, and applies the program's own step. `spare`: spare_bytes(), aligned
// as float.
void vary(Planes image, const Augmentation& augmentation, Random& random, std::span<std::uint8_t> spare);

}  // namespace dp
