// Function and memory qualifiers, and the thread's indices.
#pragma once

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/launch_bounds.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __launch_bounds__(...) DP_SIMT_LAUNCH_BOUNDS(__VA_ARGS__)
#define __shared__ static_assert(false, "shared memory is declared by DP_SHARED or DP_DYNAMIC_SHARED");

#define threadIdx (::dp::simt::thread_index)
#define blockIdx (::dp::simt::block_index)
#define blockDim (::dp::simt::block_shape)
#define gridDim (::dp::simt::grid_shape)
inline constexpr int warpSize = 32;
