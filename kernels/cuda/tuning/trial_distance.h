// The distance between two results of a trial.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "dp/shape.h"

namespace dp::kernels::cuda {

struct Distance {
  double apart = 0, norm = 0;  // sums of (a - b)^2 and of b^2; NaN propagates
  double numbers = 0;          // number of elements of a that are not NaN
};

// Elements per part, for at most 512 parts. The last part may be shorter.
constexpr std::size_t distance_part(std::size_t count) { return (count + 511) / 512; }

// Compares `count` > 0 elements of a and b, of f32, f64, bf16 or f16, on the current device; one Distance per part.
// Allocates and waits for the stream, so it must not be used in a step. In native/trial_distance.cu; the counterpart in
// tests/simulated_cuda runs on the host.
std::vector<Distance> distances(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count);

}  // namespace dp::kernels::cuda
