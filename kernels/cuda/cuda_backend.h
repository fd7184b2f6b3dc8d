// The backend for GPUs.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels::cuda {

// Requires a CUDA driver; see kernels/plugin.h.
Backend& cuda_backend();

}  // namespace dp::kernels::cuda
