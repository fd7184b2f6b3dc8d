// What a convolution on tensor cores reads and writes. All tensors lie channels last; offsets count chunks of 8 channels, 16 bytes.
#pragma once

#include <type_traits>

#include "device_code.h"
#include "kernels/cuda/gemm/gemm_geometry.h"

namespace dp::kernels::cuda {

inline constexpr int kChunk = 8;       // elements
inline constexpr int kMostTaps = 25;   // cells of a window: 5x5
inline constexpr int kTapPlaces = 32;  // of a set of taps, with those behind the last
inline constexpr int kMostParts = 4;   // of a data gradient: stride 2

// A cell that looks at a window of an image: where its first tap lies, and which of its taps lie inside the image.
struct Cell {
  int offset;
  unsigned taps;
};
// Of one tap, from that of the first.
struct Tap {
  int image, weights;
};

// The cells of one product: forward and weight gradient those of y, whose windows lie in x; data gradient those of one part of x
// (DataPoints), whose windows lie in dy, backwards.
struct Windows {
  Count lines, columns;          // cells of one image
  int cells;                     // of all images
  int height, width;             // of the image
  Count chunks;                  // of its channels
  int step, origin_h, origin_w;  // the first tap of cell (i, j) is (i * step + origin_h, j * step + origin_w)
  int taps_h, taps_w, direction;
  int tap_h, tap_w, tap_step, kernel_width;  // of the first tap in the weights, and from tap to tap
  int first_h, first_w, out_step;            // where cell (i, j) lies in the result: (first_h + i * out_step, ..)
  int out_height, out_width;

  __host__ __device__ int taps() const { return taps_h * taps_w; }

  __device__ Cell cell(int m) const {
    const int line = m / columns, image = line / lines;
    const int h = (line - image * lines) * step + origin_h, w = (m - line * columns) * step + origin_w;
    unsigned across = 0, inside = 0;
    for (int i = 0; i < taps_w; ++i)
      across |= static_cast<unsigned>(static_cast<unsigned>(w + direction * i) < static_cast<unsigned>(width)) << i;
    for (int i = 0; i < taps_h; ++i)
      if (static_cast<unsigned>(h + direction * i) < static_cast<unsigned>(height)) inside |= across << (i * taps_w);
    return {((image * height + h) * width + w) * chunks, inside};
  }
  __device__ Tap tap(int number) const {
    const int h = number / taps_w, w = number % taps_w;
    return {direction * (h * width + w) * chunks, (tap_h + h * tap_step) * kernel_width + tap_w + w * tap_step};
  }
  // The number of the result's cell.
  __device__ int out_cell(int m) const {
    const int line = m / columns, image = line / lines;
    return (image * out_height + first_h + (line - image * lines) * out_step) * out_width + first_w +
           (m - line * columns) * out_step;
  }
};

// Forward or data gradient.
struct MmaProduct {
  Windows parts[kMostParts];
  Count channels;           // of the image that the windows look at
  int out_chunks;           // of the result's channels
  int all_taps;             // of the weights
  bool bias, relu, dense;   // dense: cells of the result are numbered as those of the only part
  unsigned char count = 1;  // of parts
};
// dw.
struct MmaWeights {
  Windows windows;
  int out_chunks;  // of dy
  int splits;      // of the sum over the cells
};
// Passed to kernels byte by byte: no padding, whose bytes would be anything.
static_assert(std::has_unique_object_representations_v<MmaProduct>);
static_assert(std::has_unique_object_representations_v<MmaWeights>);

// Of a convolution whose channels, both of x and of y, are multiples of kChunk.
Windows forward_windows(const Geometry& geometry);
MmaProduct forward_product(const Geometry& geometry, bool bias, bool relu);
MmaProduct data_product(const Geometry& geometry);

}  // namespace dp::kernels::cuda
