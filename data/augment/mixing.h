// Mixup and CutMix, and the targets of mixed images.
#pragma once

#include <cstdint>
#include <span>

#include "data/augment/crops.h"
#include "dp/loader.h"

namespace dp {

// How the images of one batch are mixed: image i with image rows-1-i, all in the same way.
struct Mix {
  double own = 1;  // the part of an image that stays; 1: nothing is mixed
  Region pasted;   // CutMix: the box that comes from the other image
  bool pastes = false;
};

// Draws from Beta(alpha, alpha) by Joehnk's method; alpha > 0.
double draw_beta(double alpha, Random& random);
// Returns torchvision's box around a point, cut off at the borders. `own` is the part of the image beside the box.
Mix cut_box(double left, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns);
Mix draw_mix(const TargetOptions& options, const Shape& image, Random& random);

// Mixes `rows` images of this shape (C,H,W) in place.
void mix_images(const Mix& mix, float* images, std::int64_t rows, const Shape& image);
// Writes the targets of the mixed images, `classes` numbers at the beginning of each row of `columns`: probabilities of
// the classes, smoothed, times the weight of each class and `factor`.
void fill_targets(const Mix& mix, const TargetOptions& options, std::span<const std::int32_t> labels, double factor,
                  std::int64_t classes, std::int64_t columns, float* targets);

}  // namespace dp
