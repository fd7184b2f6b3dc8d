// Converts the per-channel values of batch normalisation between the formats of kernels/ops.h and of a library's fused
// graphs. The latter use float32 or the activations' type.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

namespace dp::kernels::cuda {

// Computes scale and offset, both of the 16-bit type `type`: x normalised is x * scale + offset. The offset compensates
// the rounding of the scale at x = mean. Only its own rounding remains there.
void enqueue_scale_and_offset(cudaStream_t stream, DType type, const void* stats, const void* weight, const void* bias,
                              void* scale, void* offset, std::int64_t channels);

// Computes moments and stats from float32 sums of n values and of their squares. `stats` may be null. Sums of squared
// deviations are clamped to at least 0.
void enqueue_moments_of_sums(cudaStream_t stream, const void* sums, const void* squares, std::int64_t n, void* moments,
                             void* stats, double eps, std::int64_t channels);

// What decides where the gradient passes a ReLU after z + addend, z = (x - mean) * inv_std * scale + offset.
enum class ReluMask {
  normalized,  // z is x normalised
  elsewhere,   // z is 0: only the addend decides
  open         // z is 1: no mask
};
// Writes mean, inv_std, scale and offset: float32, C elements each. Reads weight and bias for `normalized` only.
void enqueue_backward_numbers(cudaStream_t stream, ReluMask mask, const void* stats, const void* weight,
                              const void* bias, void* mean, void* inv_std, void* scale, void* offset,
                              std::int64_t channels);

// Converts the float32 sums of dz * xhat (`products`) and of dz (`gradients`) to the sums, dweight and dbias of
// BatchNormBackwardSums.
void enqueue_backward_sums(cudaStream_t stream, const void* products, const void* gradients, void* sums, void* dweight,
                           void* dbias, std::int64_t channels);

}  // namespace dp::kernels::cuda
