// Random data for trials of ops.
#pragma once

#include <cuda_runtime_api.h>

#include "dp/shape.h"

namespace dp::kernels::cuda {

// `count` numbers from [middle - 1, middle + 1] at `to`, of f32, f64, bf16 or f16; the same for equal seeds.
void enqueue_random(cudaStream_t stream, void* to, DType type, std::size_t count, float middle, unsigned seed);

}  // namespace dp::kernels::cuda
