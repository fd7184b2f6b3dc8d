// The rates that a GPU reaches: a large copy and a large matrix product.
#pragma once

#include "kernels/device/backend.h"
#include "kernels/device/cuda/cuda_op.h"

namespace dp::kernels::cuda {

// Measured once per process, device and type, in about a second, on the calling thread's current device. What cannot be
// measured, for lack of memory or of cuBLASLt, is calculated from the clocks; `source` says so.
Rates measured_rates(int device, DType type, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
