// The fixed summation order of communicators (kernels/communicator.h) as a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "dp/shape.h"

namespace dp::kernels::cuda {

// Summands of all ranks together.
inline constexpr int kMostSummands = 64;

// out[i] = the tree over the summands' elements i, for i in [0, count). `out` may be one of the summands. f32 and f64; bf16 is
// added in float32 and rounded once.
void tree_sum(const std::vector<const void*>& summands, void* out, std::int64_t count, DType type, cudaStream_t stream);
// Loads the kernels of sums of so many on the current device.
void load_tree_sums(int summands);

}  // namespace dp::kernels::cuda
