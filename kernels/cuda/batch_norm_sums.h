// What ends BatchNormBackwardSums, however its partial sums came about.
#pragma once

#include <cuda_runtime_api.h>

namespace dp::kernels::cuda {

// `partials`: for each of `parts` the sums of dz, then those of dz * (x - float(mean)), of all channels. Adds them in an order that follows
// from their number, and writes the op's results.
void enqueue_join_sums(cudaStream_t stream, const double* partials, unsigned parts, unsigned channels,
                       const double* stats, double* sums, float* dweight, float* dbias);

}  // namespace dp::kernels::cuda
