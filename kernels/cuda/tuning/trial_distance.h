// How far two results of a trial are apart.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "dp/shape.h"

namespace dp::kernels::cuda {

struct Distance {
  double apart = 0, norm = 0;  // sums of (a - b)^2 and of b^2; NaN stays NaN
  double numbers = 0;          // how many elements of a are not NaN
};

// Of each run of distance_part(count) elements; the last may be shorter. At most 512 runs.
constexpr std::size_t distance_part(std::size_t count) { return (count + 511) / 512; }

// Compares `count` > 0 elements at a and b, of f32, f64, bf16 or f16, on the current device. Waits for the stream. Allocates: not for
// the steps of a run. native/trial_distance.cu; its twin in tests/simulated_cuda does the same on the host.
std::vector<Distance> distances(cudaStream_t stream, const void* a, const void* b, DType type, std::size_t count);

}  // namespace dp::kernels::cuda
