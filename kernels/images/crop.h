// The random crop and horizontal flip of an image, drawn from the image's own random stream. `down` and `right` are the
// crop's offset in pixels from the corner of the unpadded image.
#pragma once

#include <cstdint>

namespace dp::kernels {

struct Crop {
  std::int64_t down = 0, right = 0;
  bool flip = false;
};

// `Stream` has below(bound), as dp::Random does.
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
