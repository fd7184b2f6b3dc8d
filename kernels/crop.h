// What an augmenting loader does to an image, drawn from the image's own stream: where the crop of the padded image begins,
// counted from the image's own corner, and whether it is flipped.
#pragma once

#include <cstdint>

namespace dp::kernels {

struct Crop {
  std::int64_t down = 0, right = 0;
  bool flip = false;
};

// Stream: below(bound), as dp::Random.
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

}  // namespace dp::kernels
