// Random data for trials.
#pragma once

#include <cuda_runtime_api.h>

#include "dp/shape.h"

namespace dp::kernels::cuda {

// Writes `count` random numbers in [middle - 1, middle + 1] of type f32, f64, bf16 or f16. Equal seeds give equal
// numbers.
void enqueue_random(cudaStream_t stream, void* to, DType type, std::size_t count, float middle, unsigned seed);

}  // namespace dp::kernels::cuda
