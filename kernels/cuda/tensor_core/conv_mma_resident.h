// 3x3 convolutions of stride 1 that keep the size, on tensor cores, by cells that stay in shared memory: since a cell of y lies where its
// cell of x does, all taps of a run of cells lie in that run and `reach` cells before and behind it. They are copied once, and each tap
// reads them elsewhere; what lies outside of the image is read from a row of zeros.
#pragma once

#include <algorithm>

#include "kernels/cuda/tensor_core/conv_mma_tile.h"

namespace dp::kernels::cuda {

inline constexpr int kResidentTaps = 9;
inline constexpr int kResidentChannels = 64;  // of a row in shared memory
inline constexpr int kRowChunks = kResidentChannels / kChunk;

__host__ __device__ inline int reach_of(int width) { return width + 1; }

// The row of a tap of cell `row` of a run that begins `reach` rows behind `first`; `zeros` where it lies outside of the image.
__device__ __forceinline__ int tap_row(int row, unsigned inside, int tap, int offset, int zeros) {
  return (inside >> tap & 1u) != 0 ? row + offset : zeros;
}
// From a cell to its tap, in cells.
__device__ __forceinline__ int tap_offset(const Windows& w, int tap) {
  return (w.origin_h + w.direction * (tap / 3)) * w.width + w.origin_w + w.direction * (tap % 3);
}

}  // namespace dp::kernels::cuda
