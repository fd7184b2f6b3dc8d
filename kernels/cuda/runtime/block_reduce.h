// Reductions over a warp or a block. Their order depends only on the number of threads.
#pragma once

#include "device_code.h"

namespace dp::kernels::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// Every lane gets the sum.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kFullWarp, value, distance);
    value += other;
  }
  return value;
}

template <typename T>
__device__ __forceinline__ T warp_max(T value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kFullWarp, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// Thread 0 gets the sum; kThreads is a multiple of 32.
template <int kThreads>
__device__ __forceinline__ double block_sum(double value) {
  DP_SHARED(double, warps, [kThreads / 32]);
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += warps[warp];
  return sum;
}

}  // namespace dp::kernels::cuda
