// Reductions over warps, blocks and grids, in a fixed order.
#pragma once

#include "device_code.h"

namespace dp::kernels::cuda {

// Their order depends only on the number of threads.

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

// Lets the last block of a kernel finish the work of all blocks, without a second kernel (docs/decisions/0033). The
// result does not depend on which block is last.

// Returns true in the last of the `blocks` blocks that call it with this counter. All threads of a block must call it.
// The last block then reads what the other blocks wrote before their calls. The counter is 0 before the first call and
// after the last one.
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
  DP_SHARED(unsigned, before, [1]);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    before[0] = atomicInc(counter, blocks - 1);
    __threadfence();
  }
  __syncthreads();
  return before[0] == blocks - 1;
}

}  // namespace dp::kernels::cuda
