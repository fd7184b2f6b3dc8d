// Geometry of max-pooling and average pooling.
#pragma once

#include "kernels/device/cuda/pack.h"
#include "kernels/op.h"

namespace dp::kernels::cuda {

inline constexpr int kPoolThreads = 256;
inline constexpr std::uint8_t kPoolStopped = 255;  // mask value: no gradient passes

struct Image {
  unsigned channels = 1, rows = 1, cols = 1;
};
inline Image image_of(const Shape& shape) {
  return {static_cast<unsigned>(shape[1]), static_cast<unsigned>(shape[2]), static_cast<unsigned>(shape[3])};
}

// The windows of a pool in one direction: window i has the cells i * stride - padding + k * dilation, k < kernel.
struct PoolSide {
  int kernel = 1, stride = 1, padding = 0, dilation = 1;
};
inline PoolSide pool_side(const Window& window, int HW::*side) {
  return {window.kernel.*side, window.stride.*side, window.padding.*side, window.dilation.*side};
}

struct Pool {
  Image large, pooled;
  PoolSide rows, cols;
};

// One cell of a sample; a pack holds channels channel .. channel + width - 1.
struct Cell {
  unsigned sample, channel;
  int row, col;
};

// The cell of thread `index` of the grid. Neighbouring threads get neighbours in memory.
template <int kWidth, bool kChannelsLast>
__device__ __forceinline__ Cell cell_of(const Image& image, unsigned index) {
  const unsigned packs = image.channels / kWidth;
  Cell cell;
  if constexpr (kChannelsLast) cell.channel = index % packs * kWidth, index /= packs;
  cell.col = static_cast<int>(index % image.cols), index /= image.cols;
  cell.row = static_cast<int>(index % image.rows), index /= image.rows;
  if constexpr (!kChannelsLast) cell.channel = index % packs, index /= packs;
  cell.sample = index;
  return cell;
}

// Distance in elements between neighbouring cells of a row.
template <bool kChannelsLast>
__device__ __forceinline__ long long col_step(const Image& image) {
  return kChannelsLast ? image.channels : 1;
}

// Index of an element in its tensor.
template <bool kChannelsLast>
__device__ __forceinline__ long long place(const Image& image, const Cell& cell) {
  const long long plane = static_cast<long long>(image.rows) * image.cols;
  const long long pixel = static_cast<long long>(cell.row) * image.cols + cell.col;
  if constexpr (kChannelsLast) return (cell.sample * plane + pixel) * image.channels + cell.channel;
  return (static_cast<long long>(cell.sample) * image.channels + cell.channel) * plane + pixel;
}

// From `first` to `last`, both included.
struct PoolRange {
  int first, last;
};
// The cells k of a window that are inside an image of `size` rows or columns. The window begins at `begin`.
__device__ __forceinline__ PoolRange cells_inside(const PoolSide& side, int begin, unsigned size) {
  const int behind = (static_cast<int>(size) - 1 - begin) / side.dilation;
  return {begin < 0 ? (side.dilation - 1 - begin) / side.dilation : 0, behind < side.kernel ? behind : side.kernel - 1};
}
// The windows whose span contains row or column `at` of the large image. If they are dilated, `at` may be between two
// of their cells.
__device__ __forceinline__ PoolRange windows_over(const PoolSide& side, int at, unsigned pooled) {
  const int from = at + side.padding - (side.kernel - 1) * side.dilation, last = (at + side.padding) / side.stride,
            most = static_cast<int>(pooled) - 1;
  return {from > 0 ? (from + side.stride - 1) / side.stride : 0, last < most ? last : most};
}
// The input rows or columns of output cell `at` of an adaptive pool. With `input` and `output` exchanged: the output
// cells that read input cell `at`.
__device__ __forceinline__ PoolRange adaptive_range(unsigned at, unsigned input, unsigned output) {
  const auto whole = [&](unsigned long long cells) { return static_cast<int>(cells / output); };
  return {whole(static_cast<unsigned long long>(at) * input),
          whole(static_cast<unsigned long long>(at + 1) * input + output - 1) - 1};
}

inline Launch over_cells(const char* kernel, unsigned elements, int width, cudaStream_t stream) {
  return {kernel, dim3(blocks_for(elements / static_cast<unsigned>(width), kPoolThreads)), dim3(kPoolThreads), stream};
}

}  // namespace dp::kernels::cuda
