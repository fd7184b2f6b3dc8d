// Operations on images of bytes. They give the bits of torchvision.transforms.v2.functional for uint8 tensors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dp/augmentation.h"

namespace dp {

// Borrowed planes of bytes, (C,H,W).
struct Planes {
  std::uint8_t* bytes;
  std::int64_t channels, rows, columns;

  std::int64_t pixels() const { return rows * columns; }
  std::int64_t size() const { return channels * pixels(); }
};

// In place. Factors are 0 or more; 1 changes nothing. Images of one channel have no saturation and no hue. Those of
// contrast, saturation and hue require 1 or 3 channels.
void adjust_brightness(Planes image, double factor);
void adjust_contrast(Planes image, double factor);
void adjust_saturation(Planes image, double factor);
void adjust_hue(Planes image, double turns);    // -0.5 to 0.5
void posterize(Planes image, int bits);         // 0 to 8: the highest bits that are kept
void solarize(Planes image, double threshold);  // inverts bytes from the threshold on
void autocontrast(Planes image);
void equalize(Planes image);
void invert(Planes image);

// From `image` to `out`, which has image.size() bytes of its own. factor 0: blurred; 1: unchanged.
void adjust_sharpness(Planes image, double factor, std::uint8_t* out);

// Moves the image by `right` and `down` pixels, shears it and turns it clockwise, about its centre or its upper left
// corner.
struct Affine {
  double angle = 0, shear_x = 0, shear_y = 0;  // degrees
  double right = 0, down = 0;
  bool about_corner = false;
};
// From `image` to `out`, which has image.size() bytes of its own. Outside the image all is black.
void affine(Planes image, const Affine& transform, Interpolation interpolation, std::uint8_t* out);

// A rectangle of pixels.
struct Region {
  std::int64_t left = 0, top = 0, width = 0, height = 0;

  friend bool operator==(const Region&, const Region&) = default;
};

// Sets the rectangle to 0 in every plane of `columns` columns and `pixels` pixels.
template <typename T>
void erase(T* image, std::int64_t channels, std::int64_t pixels, std::int64_t columns, const Region& region) {
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t y = 0; y < region.height; ++y)
      std::fill_n(image + c * pixels + (region.top + y) * columns + region.left, region.width, T{});
}

}  // namespace dp
