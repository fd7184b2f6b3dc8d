// Geometry of a convolution on tensor cores. All tensors are channels last. Offsets count chunks: 8 channels, 16 bytes.
#pragma once

#include <type_traits>

#include "device_code.h"
#include "kernels/linear/cuda_gemm.h"

namespace dp::kernels::cuda {

inline constexpr int kChunk = 8;       // elements
inline constexpr int kMostTaps = 25;   // cells of a window: 5x5
inline constexpr int kTapPlaces = 32;  // array size for taps; also bits of Cell::taps
inline constexpr int kMostParts = 4;   // of a data gradient with stride 2

// A cell and its window in an image. offset: of its first tap, in chunks. taps: bit mask of the taps inside the image.
struct Cell {
  int offset;
  unsigned taps;
};
// image: offset from the first tap, in chunks. weights: index of the tap in the weights.
struct Tap {
  int image, weights;
};

// The cells of one product and their windows. Forward and weight gradient: cells of y, windows in
// x. Data gradient: cells of one part of x (see DataPoints), windows in dy with reversed taps.
struct Windows {
  Count lines, columns;          // cells of one image
  int cells;                     // of all images
  int height, width;             // of the image that has the windows
  Count chunks;                  // of the channels of that image
  int step, origin_h, origin_w;  // the first tap of cell (i, j) is (i * step + origin_h, j * step + origin_w)
  int taps_h, taps_w, direction;
  int tap_h, tap_w, tap_step, kernel_width;  // first tap in the weights, and distance between taps
  int first_h, first_w, out_step;            // cell (i, j) is at (first_h + i * out_step, ..) of the result
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
  // Index of the cell in the result.
  __device__ int out_cell(int m) const {
    const int line = m / columns, image = line / lines;
    return (image * out_height + first_h + (line - image * lines) * out_step) * out_width + first_w +
           (m - line * columns) * out_step;
  }
};

// Product of a forward or a data gradient.
struct MmaProduct {
  Windows parts[kMostParts];
  Count channels;           // of the image that has the windows
  int out_chunks;           // of the result's channels
  int all_taps;             // of the weights
  bool bias, relu, dense;   // dense: cells of the result have the same numbers as those of the only part
  unsigned char count = 1;  // number of parts
};
// Product of a weight gradient.
struct MmaWeights {
  Windows windows;
  int out_chunks;  // of dy
  int splits;      // of the sum over the cells
};
// Passed to kernels byte by byte, so there must be no padding: its bytes would be indeterminate.
static_assert(std::has_unique_object_representations_v<MmaProduct>);
static_assert(std::has_unique_object_representations_v<MmaWeights>);

// Channels of x and y must be multiples of kChunk.
Windows forward_windows(const Geometry& geometry);
MmaProduct forward_product(const Geometry& geometry, bool bias, bool relu);
MmaProduct data_product(const Geometry& geometry);

}  // namespace dp::kernels::cuda
