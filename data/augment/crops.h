// Crop geometry of torchvision's RandomResizedCrop, Resize and CenterCrop.
#pragma once

#include "data/augment/resize.h"
#include "dp/random.h"

namespace dp {

// Training (RandomResizedCrop). Area: 8 to 100 % of the image, uniform. Aspect ratio: 3:4 to 4:3, log-uniform. If ten
// tries do not fit into the image: the largest central crop with an aspect ratio in that range. Draws area and ratio
// for each try, then top and left.
Region random_resized_crop(std::int64_t width, std::int64_t height, Random& random);

// Evaluation (Resize, CenterCrop). width x height: size of the whole resized image. Its shorter side is 256 for a
// `side` of 224, and in proportion otherwise. window: the central square of `side` pixels in it.
struct CentralCrop {
  std::int64_t width, height;
  Region window;
};
CentralCrop central_crop(std::int64_t width, std::int64_t height, std::int64_t side);

}  // namespace dp
