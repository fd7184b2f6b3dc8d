// Packs the operands of AmxBackwardWeights.
//
// x   one plane of pixels per channel and copy. With a copy per tap, pixel i of the copy belongs to pixel i of dy. With
//     a copy per column of taps, the copy has kernel - 1 more rows, and a tap is an offset into it.
// dy  in blocks of 16 channels, two pixels side by side, as the tile instructions require.
//
// Images whose number of pixels is no multiple of a tile's depth are packed side by side as one unit. The functions
// require AVX-512.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/low_float.h"
#include "kernels/ops.h"

namespace dp::kernels::amx {

constexpr std::int64_t kBlock = 16;  // channels of a tile
constexpr std::int64_t kDepth = 32;  // pixels of a tile

inline std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Shapes {
  std::int64_t kernel, stride, padding;
  std::int64_t height, width;          // of x
  std::int64_t out_height, out_width;  // of dy
  bool by_column;                      // the taps of a column share a copy
  std::int64_t copies, rows;           // copies of x, and the rows of each
  std::int64_t unit;                   // images that are packed side by side
  std::int64_t depth;                  // pixels of a unit of dy, a multiple of kDepth
  std::int64_t line;                   // elements of a channel of a unit of x

  Shapes(const Window& window, const ActivationView& x, const ActivationView& dy)
      : kernel(window.kernel),
        stride(window.stride),
        padding(window.padding),
        height(x.h),
        width(x.w),
        out_height(dy.h),
        out_width(dy.w) {
    const std::int64_t pixels = out_height * out_width;
    by_column = stride == 1 && kernel > 1 && pixels > 64 && pixels % kDepth == 0;
    copies = by_column ? kernel : kernel * kernel;
    rows = by_column ? out_height + kernel - 1 : out_height;
    unit = 1;
    const auto padded = [&](std::int64_t images) {
      return (x.n + images - 1) / images * rounded_up(images * pixels, kDepth);
    };
    for (std::int64_t images = 2; images <= kDepth; ++images)
      if (padded(images) < padded(unit)) unit = images;
    depth = rounded_up(unit * pixels, kDepth);
    line = by_column ? rows * out_width : depth;
  }
  std::int64_t pixels() const { return out_height * out_width; }
  std::int64_t block() const { return copies * kBlock * line; }  // elements of a block of a unit of x
};

// The transposed block of 16 channels of one image: (phase * 16 + channel) * plane + row * pitch + i is the pixel in
// column i * stride + phase.
struct Planar {
  std::int64_t pitch, plane;

  explicit Planar(const Shapes& s)
      : pitch((s.width + s.stride - 1) / s.stride), plane(rounded_up(s.height * pitch, kDepth) + kDepth) {}
  std::int64_t elements(const Shapes& s) const { return s.stride * kBlock * plane; }
};
// The place in the padded image of a copy's first pixel, and where its columns are in the transposed block.
struct Copy {
  std::int64_t row, col, phase, shift, columns;

  Copy(const Shapes& s, std::int64_t number)
      : row((s.by_column ? 0 : number / s.kernel) - s.padding), col(number % s.kernel - s.padding) {
    phase = (col % s.stride + s.stride) % s.stride;
    shift = (col - phase) / s.stride;
    columns = (s.width - phase + s.stride - 1) / s.stride;
  }
};

// A copy of an image of at most 64 pixels, as a permutation of two vectors.
struct Permutation {
  alignas(64) std::uint16_t from[64] = {};
  std::uint64_t found = 0;

  Permutation(const Shapes& s, const Planar& planar, const Copy& copy) {
    for (std::int64_t pixel = 0; pixel < s.pixels(); ++pixel) {
      const std::int64_t row = pixel / s.out_width * s.stride + copy.row, col = pixel % s.out_width + copy.shift;
      if (row < 0 || row >= s.height || col < 0 || col >= copy.columns) continue;
      from[pixel] = static_cast<std::uint16_t>(row * planar.pitch + col);
      found |= std::uint64_t{1} << pixel;
    }
  }
  static bool fits(const Shapes& s, const Planar& planar) {
    return !s.by_column && s.pixels() <= 64 && s.height * planar.pitch <= 64;
  }
};
// Transposes a block. `x`: its first element; a pixel's 16 channels are contiguous, the next pixel is `step` elements
// further. Writes up to 15 elements beyond a row.
void transpose(const Shapes& s, const Planar& planar, const BFloat16* x, std::int64_t step, BFloat16* to);
// Copies the pixels of one image for one copy of x from the transposed block, row by row, at most 32 columns at a time.
void pack_rows(const Shapes& s, const Planar& planar, const Copy& copy, const BFloat16* planes, BFloat16* to);
// The same by a permutation.
void pack_permuted(const Shapes& s, const Planar& planar, const Copy& copy, const Permutation& permutation,
                   const BFloat16* planes, BFloat16* to);
// Packs a block of 16 channels of one image of dy, whose first pixel is number `pixel` of its unit.
void pack_pairs(const Shapes& s, std::int64_t pixel, const BFloat16* dy, std::int64_t step, BFloat16* unit);

}  // namespace dp::kernels::amx
