// Turns sums into results: adds partial sums, bias and ReLU.
#pragma once

#include "device_code.h"
#include "kernels/cuda/gemm/gemm_geometry.h"
#include "kernels/cuda/ops/pack.h"

namespace dp::kernels::cuda {

__device__ __forceinline__ float ended(float sum, const float* bias, int col, const Ending& ending) {
  const float value = ending.bias ? sum + bias[col] : sum;
  return ending.relu && value < 0 ? 0.f : value;  // lets NaN through
}

// Index of a partial sum within its split.
template <typename Points>
__device__ long long partial_place(const Points& points, int dense_row, int col) {
  return Points::kColsInner ? static_cast<long long>(dense_row) * points.cols() + col
                            : static_cast<long long>(col) * points.all_rows() + dense_row;
}

// Offset of a split's partial sums in the workspace, in floats. A split holds the sums of
// all results, then, with `columns`, the sums of all columns.
template <typename Points>
__device__ __forceinline__ long long split_place(const Points& points, int split, bool columns) {
  return static_cast<long long>(split) *
         (static_cast<long long>(points.all_rows()) * points.cols() + (columns ? points.cols() : 0));
}
template <typename Points>
__device__ __forceinline__ long long column_place(const Points& points, int split, int col) {
  return split_place(points, split, true) + static_cast<long long>(points.all_rows()) * points.cols() + col;
}

inline constexpr int kEndThreads = 256;

// Each result has `lanes` threads. Thread i adds the partial sums of splits i, i + lanes, i + 2 * lanes, ... in order.
// Thread 0 then adds the threads' sums in order.
template <typename Points, int lanes, typename Out>
__global__ void __launch_bounds__(kEndThreads)
    gemm_end_kernel(const float* partials, const float* bias, Out* out, Geometry geometry, Ending ending) {
  constexpr int kResults = kEndThreads / lanes;
  DP_SHARED(float, sums, [lanes][kResults]);
  const Points points(geometry, 0);
  const int result = static_cast<int>(threadIdx.x) % kResults, lane = static_cast<int>(threadIdx.x) / kResults;
  const int at = static_cast<int>(blockIdx.x) * kResults + result, all = points.all_rows() * points.cols();
  float sum = 0;
  if (at < all)
    for (int split = lane; split < ending.splits; split += lanes)
      sum += partials[static_cast<long long>(split) * all + at];
  sums[lane][result] = sum;
  __syncthreads();
  if (lane != 0 || at >= all) return;
  for (int other = 1; other < lanes; ++other) sum += sums[other][result];
  const int inner = Points::kColsInner ? points.cols() : points.all_rows();
  const int row = Points::kColsInner ? at / inner : at % inner, col = Points::kColsInner ? at % inner : at / inner;
  out[points.out_row(row) + points.out_col(col)] = from_float<Out>(ended(sum, bias, col, ending));
}

template <typename Points, typename Out>
void enqueue_end(cudaStream_t stream, const float* partials, const float* bias, Out* out, const Geometry& geometry,
                 const Ending& ending) {
  const Points points(geometry, 0);
  const long long results = static_cast<long long>(points.all_rows()) * points.cols();
  const bool few = ending.splits <= 8;
  const Launch where{"gemm_end", dim3(blocks_for(results, few ? kEndThreads : kEndThreads / 8)), dim3(kEndThreads),
                     stream};
  launch(where, few ? gemm_end_kernel<Points, 1, Out> : gemm_end_kernel<Points, 8, Out>, partials, bias, out, geometry,
         ending);
}

}  // namespace dp::kernels::cuda
