// float32 products fused with a neighbouring op: dropout, the gradient of ReLU, a 2x2 max-pool or its gradient.
#pragma once

#include <cstdint>

#include "kernels/device/cuda/philox.h"
#include "kernels/linear/cuda_gemm_tile.h"
#include "kernels/pool/cuda_pool.h"

namespace dp::kernels::cuda {

// Dropout of a linear layer's results. samples: one per row.
struct DroppedOut {
  const std::int64_t* samples;
  const StepInputs* inputs;
  Dropping dropping;
  unsigned unused = 0;

  __device__ float operator()(float value, int row, int col, long long) const {
    return dropout_keeps(*inputs, dropping, samples[row], static_cast<unsigned>(col)) ? value * dropping.scale : 0.f;
  }
};

// Gradient of a ReLU. x: the ReLU's result, in the layout of the product's results.
struct Masked {
  const float* x;

  __device__ float operator()(float value, int, int, long long place) const { return x[place] > 0 ? value : 0.f; }
};

// The result of a 2x2 pool with stride 2.
struct PooledImage {
  int rows, cols, channels;
};

// ForwardPoints with rows in the order of pool windows: rows 4 * i to 4 * i + 3 are the cells of window i.
struct WindowPoints : ForwardPoints {
  int pooled_rows, pooled_cols;

  __host__ __device__ WindowPoints(const Geometry& geometry, int)
      : ForwardPoints(geometry, 0), pooled_rows(geometry.out_height / 2), pooled_cols(geometry.out_width / 2) {}
  __host__ __device__ int rows() const { return all_rows(); }
  __host__ __device__ int all_rows() const { return g.batch * pooled_rows * pooled_cols * 4; }
  __device__ Point a_row(int m) const {
    const int window = m / 4, line = window / pooled_cols;
    const int w = (window % pooled_cols * 2 + m % 2) * g.stride - g.padding;
    const int h = (line % pooled_rows * 2 + m % 4 / 2) * g.stride - g.padding;
    return {g.x.of_cell(line / pooled_rows, h, w), h, w};
  }
};

// Maximum of this lane's value and that of lane ^ distance, with its cell. `first`: this lane's cell
// precedes the other's in the window. The earlier cell wins a tie. NaN is greater than any number.
__device__ __forceinline__ void take_greater(float& value, int& cell, int distance, bool first) {
  const float other = __shfl_xor_sync(0xffffffffu, value, distance);
  const int other_cell = __shfl_xor_sync(0xffffffffu, cell, distance);
  const float left = first ? value : other, right = first ? other : value;
  const bool right_wins = left == left && !(right <= left);
  cell = right_wins == first ? other_cell : cell;
  value = right_wins ? right : left;
}

// y and mask are channels last. `mask`: null outside training. `samples` and `inputs`: null without dropout.
template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    gemm_pool_kernel(const float* a, const float* b, const float* bias, float* y, std::uint8_t* mask,
                     const std::int64_t* samples, const StepInputs* inputs, Geometry geometry, Ending ending,
                     Dropping dropping, bool pool_relu) {
  multiply_tile<WindowPoints, Tile, false>(
      a, b, geometry, ending,
      [&](const auto& points, const auto& sums, const auto& row_of, const auto& col_of, int, float) {
        // The four lanes with equal columns hold the four cells of one window: in
        // multiply_tile a warp is 4 threads down and 8 across.
        const int own = static_cast<int>(threadIdx.x) % 32 / 8;
#pragma unroll
        for (int i = 0; i < Tile::kThreadRows; ++i) {
          const int row = row_of(i), window = row / 4;
#pragma unroll
          for (int j = 0; j < Tile::kThreadCols; ++j) {
            const int col = col_of(j);
            const bool inside = row < points.rows() && col < points.cols();
            float best = inside ? ended(sums[i][j], bias, col, ending) : 0.f;
            int cell = own;
            take_greater(best, cell, 8, own % 2 == 0);
            take_greater(best, cell, 16, own < 2);
            if (!inside || own != j % 4) continue;  // each lane stores a quarter
            if (pool_relu && best <= 0) best = 0, cell = kPoolStopped;
            if (samples != nullptr) {
              const int line = window / points.pooled_cols, image = line / points.pooled_rows;
              const unsigned element =
                  static_cast<unsigned>((col * points.pooled_rows + line % points.pooled_rows) * points.pooled_cols +
                                        window % points.pooled_cols);
              const bool kept = dropout_keeps(*inputs, dropping, samples[image], element);
              best = kept ? best * dropping.scale : 0.f;
              if (!kept) cell = kPoolStopped;
            }
            const long long at = static_cast<long long>(window) * points.cols() + col;
            y[at] = best;
            if (mask != nullptr) mask[at] = static_cast<std::uint8_t>(cell);
          }
        }
      });
}

// Data gradient of a linear layer whose input is the result of a 2x2 pool, followed by the
// gradient of that pool. dx: the gradient of the pool's input. Both images are channels last.
template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    gemm_unpool_kernel(const float* a, const float* b, const std::uint8_t* mask, float* dx, Geometry geometry,
                       Ending ending, PooledImage pooled, float scale) {
  multiply_tile<DataPoints, Tile, false>(
      a, b, geometry, ending,
      [&](const auto& points, const auto& sums, const auto& row_of, const auto& col_of, int, float) {
#pragma unroll
        for (int i = 0; i < Tile::kThreadRows; ++i) {
          const int image = row_of(i);
          if (image >= points.rows()) continue;
#pragma unroll
          for (int j = 0; j < Tile::kThreadCols; ++j) {
            const int feature = col_of(j);
            if (feature >= points.cols()) continue;
            const int channel = feature % pooled.channels, place = feature / pooled.channels;
            const long long row = (static_cast<long long>(image) * pooled.rows + place / pooled.cols) * 2;
            const int taken = mask[static_cast<long long>(image) * points.cols() + feature];
            const float gradient = sums[i][j] * scale;
#pragma unroll
            for (int cell = 0; cell < 4; ++cell) {
              const long long at = (row + cell / 2) * pooled.cols * 2 + place % pooled.cols * 2 + cell % 2;
              dx[at * pooled.channels + channel] = cell == taken ? gradient : 0.f;
            }
          }
        }
      });
}

}  // namespace dp::kernels::cuda
