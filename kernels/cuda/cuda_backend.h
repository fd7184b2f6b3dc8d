// GPUs as the engine sees them.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels::cuda {

// The driver must be there: see kernels/plugin.h.
Backend& cuda_backend();

}  // namespace dp::kernels::cuda
