// Between batch normalisation's numbers as kernels/ops.h lays them out and those that a library's fused graphs take and give: of each
// channel, in float32 or the activations' type.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

namespace dp::kernels::cuda {

// x normalised as x * scale + offset, both of the 16-bit type `type`. The offset makes good what the scale is rounded by where x is the
// mean, so that only what the offset itself is rounded by is lost there.
void enqueue_scale_and_offset(cudaStream_t stream, DType type, const void* stats, const void* weight, const void* bias,
                              void* scale, void* offset, std::int64_t channels);

// Of float32 sums of n values and of their squares; `stats` may be null. Squared deviations are never below 0.
void enqueue_moments_of_sums(cudaStream_t stream, const void* sums, const void* squares, std::int64_t n, void* moments,
                             void* stats, double eps, std::int64_t channels);

// Where a gradient passes a ReLU behind z = (x - mean) * inv_std * scale + offset, plus something.
enum class ReluMask {
  normalized,  // z is x normalised
  elsewhere,   // z is 0: what is added alone decides
  open         // z is 1
};
// mean, inv_std, scale, offset: float32, C each. weight and bias: of `normalized`.
void enqueue_backward_numbers(cudaStream_t stream, ReluMask mask, const void* stats, const void* weight,
                              const void* bias, void* mean, void* inv_std, void* scale, void* offset,
                              std::int64_t channels);

// Of the float32 sums of dz * xhat and of dz: sums, dweight and dbias as BatchNormBackwardSums gives them.
void enqueue_backward_sums(cudaStream_t stream, const void* products, const void* gradients, void* sums, void* dweight,
                           void* dbias, std::int64_t channels);

}  // namespace dp::kernels::cuda
