// What trials of ways to compute an op need on the device besides: data, and how far results lie apart.
#pragma once

#include <cuda_runtime_api.h>

#include "dp/shape.h"

namespace dp::kernels::cuda {

// `count` numbers from [middle - 1, middle + 1] at `to`, of f32, f64, bf16 or f16; the same for equal seeds.
void enqueue_random(cudaStream_t stream, void* to, DType type, std::size_t count, float middle, unsigned seed);

// Partial sums over runs of distance_part(count) of the `count` elements of a and b: of (a - b)^2, then of b^2, in double, kDistanceParts of
// each. NaN stays NaN.
inline constexpr unsigned kDistanceParts = 512;
constexpr std::size_t distance_part(std::size_t count) { return (count + kDistanceParts - 1) / kDistanceParts; }
void enqueue_distance(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count, double* parts);

// Of each run the number of elements that are not NaN, in the first kDistanceParts places.
void enqueue_numbers(cudaStream_t stream, const void* a, DType type, std::size_t count, double* parts);

}  // namespace dp::kernels::cuda
