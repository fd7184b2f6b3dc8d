// The fixed summation order of communicators (kernels/comm/communicator.h) as a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "dp/shape.h"

namespace dp::kernels::cuda {

// Limit on the summands of all ranks together.
inline constexpr int kMostSummands = 64;

// out[i] = the tree sum of the summands' elements i, for i in [0, count). `out` may be
// one of the summands. Types: f32, f64, and bf16, which is added in float32 and rounded
// once. Error(usage) for any other type or more than kMostSummands summands.
void tree_sum(const std::vector<const void*>& summands, void* out, std::int64_t count, DType type, cudaStream_t stream);
// Loads the kernels for sums of `summands` summands on the current device.
void load_tree_sums(int summands);

}  // namespace dp::kernels::cuda
