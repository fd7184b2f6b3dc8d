// Resizing and cropping as torchvision's transforms do: resizing with Pillow's bits, and the crops of
// RandomResizedCrop, Resize and CenterCrop.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/augment/image_ops.h"
#include "dp/random.h"

namespace dp {

// Borrowed interleaved RGB pixels, one byte per channel.
struct RgbView {
  const std::uint8_t* pixels;
  std::int64_t width, height;
  std::int64_t row_bytes;

  RgbView part(const Region& region) const {
    return {pixels + region.top * row_bytes + region.left * 3, region.width, region.height, row_bytes};
  }
};

// bilinear and bicubic: a filter that is widened by the scale when downsampling. It runs horizontally, then vertically,
// and rounds to 8 bits after each pass. Weights have 22 fractional bits. Buffers are reused between calls.
class Resizer {
 public:
  // Resizes `source` to width x height, but computes only `window` of the result. Writes planes to `out`, which has
  // 3 * window.width * window.height bytes. `window` must be inside width x height.
  void resize(RgbView source, std::int64_t width, std::int64_t height, const Region& window,
              Interpolation interpolation, std::span<std::uint8_t> out);

 private:
  // The inputs of each output along one axis, and their weights.
  struct Axis {
    void prepare(std::int64_t in, std::int64_t out, std::int64_t begin, std::int64_t count, Interpolation by);
    void prepare_nearest(std::int64_t in, std::int64_t out, std::int64_t begin, std::int64_t count);

    struct Taps {
      std::int64_t first, count;
    };
    std::vector<Taps> taps;             // one per output
    std::vector<std::int32_t> weights;  // `stride` per output
    std::vector<double> exact;          // weights of one output before rounding
    std::int64_t stride = 0;
  };

  void copy_nearest(RgbView source, const Region& window, std::span<std::uint8_t> out) const;

  Axis columns_, rows_;
  std::vector<std::uint8_t> between_;  // horizontally filtered input rows: three planes per row
  std::vector<std::int32_t> sums_;     // accumulators of one output row
};

// Training (RandomResizedCrop). Area: 8 to 100 % of the image, uniform. Aspect ratio: 3:4 to 4:3, log-uniform. If ten
// tries do not fit into the image: the largest central crop with an aspect ratio in that range. Draws area and ratio
// for each try, then top and left.
Region random_resized_crop(std::int64_t width, std::int64_t height, Random& random);

// Evaluation (Resize, CenterCrop). width x height: size of the whole resized image. Its shorter side is `side` divided
// by `crop_pct`, rounded down. window: the central square of `side` pixels in it.
struct CentralCrop {
  std::int64_t width, height;
  Region window;
};
CentralCrop central_crop(std::int64_t width, std::int64_t height, std::int64_t side, double crop_pct);

}  // namespace dp
