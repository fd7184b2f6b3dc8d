// What a GPU can do at best, by its clocks and what NVIDIA's documents say of its generation.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels::cuda {

// Zeros for a generation that is not known.
Rates device_rates(int device, DType type);

}  // namespace dp::kernels::cuda
