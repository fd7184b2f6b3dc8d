// Weight gradients of bfloat16 convolutions with AMX.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/low_float.h"
#include "kernels/ops.h"

namespace dp::kernels::amx {

// The packed operands of AmxBackwardWeights:
//
// x   is copied several times, as one plane of pixels per channel. Either each tap has its own copy, and pixel i of the
//     copy is multiplied by pixel i of dy. Or the taps of one kernel column share a copy. It then has kernel - 1 more
//     rows, and each tap starts at its own offset.
// dy  is stored in blocks of 16 channels, with two pixels interleaved, as the tile instructions require.
//
// A tile multiplies 32 pixels. Several images are packed together as one unit if that fills more tiles completely. The
// functions require AVX-512.

constexpr std::int64_t kBlock = 16;  // channels of a tile
constexpr std::int64_t kDepth = 32;  // pixels of a tile

inline std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Shapes {
  std::int64_t kernel, stride, padding;
  std::int64_t height, width;          // of x
  std::int64_t out_height, out_width;  // of dy
  bool by_column;                      // the taps of a kernel column share a copy
  std::int64_t copies, rows;           // copies of x, and the rows of each
  std::int64_t unit;                   // images per unit
  std::int64_t depth;                  // pixels of a unit of dy, a multiple of kDepth
  std::int64_t line;                   // elements of x per channel and copy in a unit

  Shapes(const Window& window, const ActivationView& x, const ActivationView& dy)
      : kernel(window.kernel.h),
        stride(window.stride.h),
        padding(window.padding.h),
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

// The layout of one image's block of 16 channels after transpose(). The pixel of `channel` in `row` and in column
// i * stride + phase is element (phase * 16 + channel) * plane + row * pitch + i.
struct Planar {
  std::int64_t pitch, plane;

  explicit Planar(const Shapes& s)
      : pitch((s.width + s.stride - 1) / s.stride), plane(rounded_up(s.height * pitch, kDepth) + kDepth) {}
  std::int64_t elements(const Shapes& s) const { return s.stride * kBlock * plane; }
};

// One copy of x. row, col: the first pixel, which may be in the padding. phase, shift, columns: where the transposed
// block stores the copy's columns.
struct Copy {
  std::int64_t row, col, phase, shift, columns;

  Copy(const Shapes& s, std::int64_t number)
      : row((s.by_column ? 0 : number / s.kernel) - s.padding), col(number % s.kernel - s.padding) {
    phase = (col % s.stride + s.stride) % s.stride;
    shift = (col - phase) / s.stride;
    columns = (s.width - phase + s.stride - 1) / s.stride;
  }
};

// Makes a copy of an image of at most 64 pixels by permuting two vectors. from: the source of each pixel. found: a bit
// for each pixel that is not padding.
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

// Transposes a block of 16 channels. `x` is its first element. Each pixel's channels are contiguous, and the next pixel
// is `step` elements further. Writes up to 15 elements past the end of a row.
void transpose(const Shapes& s, const Planar& planar, const BFloat16* x, std::int64_t step, BFloat16* to);
// Writes one image's pixels of a copy, row by row, from the transposed block.
void pack_rows(const Shapes& s, const Planar& planar, const Copy& copy, const BFloat16* planes, BFloat16* to);
// Does the same with a Permutation.
void pack_permuted(const Shapes& s, const Planar& planar, const Copy& copy, const Permutation& permutation,
                   const BFloat16* planes, BFloat16* to);
// Packs 16 channels of one image of dy. `pixel`: the position of the image's first pixel in the unit.
void pack_pairs(const Shapes& s, std::int64_t pixel, const BFloat16* dy, std::int64_t step, BFloat16* unit);

}  // namespace dp::kernels::amx

namespace dp::kernels {

// The weight gradient of a convolution in bfloat16 with AMX tiles.

// Null if the processor has no AMX, or for shapes and layouts that the kernel does not support. All layouts are set.
std::unique_ptr<HostOp> make_amx_backward_weights(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
