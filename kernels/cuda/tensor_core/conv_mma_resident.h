// 3x3 convolutions with stride 1 and padding 1 on tensor cores, with cells that stay in shared memory. x and y
// have the same size. All taps of a run of cells are in that run or at most `reach` cells before or after it.
// A block copies these cells once and reads each tap at an offset. Taps outside the image read a row of zeros.
#pragma once

#include <algorithm>

#include "kernels/cuda/tensor_core/conv_mma_tile.h"

namespace dp::kernels::cuda {

inline constexpr int kResidentTaps = 9;
inline constexpr int kResidentChannels = 64;  // per row in shared memory
inline constexpr int kRowChunks = kResidentChannels / kChunk;

__host__ __device__ inline int reach_of(int width) { return width + 1; }

// Shared-memory row of a tap of cell `row` of a run: row + offset, or `zeros` if the tap is outside the image.
// `inside`: bit mask of the cell's taps inside the image.
__device__ __forceinline__ int tap_row(int row, unsigned inside, int tap, int offset, int zeros) {
  return (inside >> tap & 1u) != 0 ? row + offset : zeros;
}
// Distance from a cell to its tap, in cells.
__device__ __forceinline__ int tap_offset(const Windows& w, int tap) {
  return (w.origin_h + w.direction * (tap / 3)) * w.width + w.origin_w + w.direction * (tap % 3);
}

}  // namespace dp::kernels::cuda
