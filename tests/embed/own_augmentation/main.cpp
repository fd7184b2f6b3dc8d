#include <dp/augmentation.h>
#include <dp/train_main.h>

#include <algorithm>

// Cutout: a black square around a random pixel, half as wide as the image. A part of it may be outside.
void cutout(std::span<std::uint8_t> image, const dp::Shape& shape, dp::Random& random) {
  const std::int64_t rows = shape[1], columns = shape[2], half = columns / 4;
  const std::int64_t y = random.below(static_cast<std::uint32_t>(rows));
  const std::int64_t x = random.below(static_cast<std::uint32_t>(columns));
  const std::int64_t top = std::max<std::int64_t>(y - half, 0), bottom = std::min(y + half, rows);
  const std::int64_t left = std::max<std::int64_t>(x - half, 0), right = std::min(x + half, columns);
  for (std::int64_t channel = 0; channel < shape[0]; ++channel)
    for (std::int64_t row = top; row < bottom; ++row)
      std::fill_n(image.data() + (channel * rows + row) * columns + left, right - left, std::uint8_t{0});
}

int main(int argc, char** argv) {
  dp::augmentations::add({"cutout", "a black square", cutout});
  return dp::train_main(argc, argv);
}
