// Geometry of max-pooling and average pooling.
#pragma once

#include "kernels/device/cuda/pack.h"

namespace dp::kernels::cuda {

inline constexpr int kPoolThreads = 256;
inline constexpr std::uint8_t kPoolStopped = 255;  // mask value: no gradient passes

struct Image {
  unsigned channels = 1, rows = 1, cols = 1;
};
inline Image image_of(const Shape& shape) {
  return {static_cast<unsigned>(shape[1]), static_cast<unsigned>(shape[2]), static_cast<unsigned>(shape[3])};
}

// Each cell of `pooled` has a window of `large`: row i covers rows i * stride - padding + [0, kernel_rows).
struct Pool {
  Image large, pooled;
  int kernel_rows = 1, kernel_cols = 1, stride = 1, padding = 0;
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

// The pooled rows (or columns) [first, last] whose windows cover row (or column) `at` of the large image.
struct Windows {
  int first, last;
};
__device__ __forceinline__ Windows windows_over(int at, int kernel, int stride, int padding, unsigned pooled) {
  const int from = at + padding - kernel + 1, last = (at + padding) / stride, most = static_cast<int>(pooled) - 1;
  return {from > 0 ? (from + stride - 1) / stride : 0, last < most ? last : most};
}

inline Launch over_cells(const char* kernel, unsigned elements, int width, cudaStream_t stream) {
  return {kernel, dim3(blocks_for(elements / static_cast<unsigned>(width), kPoolThreads)), dim3(kPoolThreads), stream};
}

}  // namespace dp::kernels::cuda
