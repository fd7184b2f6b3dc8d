// Which part of an image of any size a sample is made of: torchvision's geometry.
#pragma once

#include "data/augment/resize.h"
#include "dp/random.h"

namespace dp {

// For training (RandomResizedCrop): an area of 8 to 100 % with sides of 3:4 to 4:3, log-uniform, that fits; after ten
// tries the largest central part with such sides. What is drawn: area and ratio for each try, then top and left.
Region random_resized_crop(std::int64_t width, std::int64_t height, Random& random);

// For evaluation (Resize, CenterCrop): the size that the whole image is resized to, its shorter side 256 for a side of
// 224 and in proportion for others, and the central square of `side` in that.
struct CentralCrop {
  std::int64_t width, height;
  Region window;
};
CentralCrop central_crop(std::int64_t width, std::int64_t height, std::int64_t side);

}  // namespace dp
