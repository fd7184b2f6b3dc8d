// Peak rates of a GPU, from its clocks and NVIDIA's documents on its generation.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels::cuda {

// Zeros for an unknown generation.
Rates device_rates(int device, DType type);

}  // namespace dp::kernels::cuda
