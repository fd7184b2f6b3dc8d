// The CUDA backend and the description of its devices.
#pragma once

#include <string>

#include "kernels/device/backend.h"

namespace dp::kernels::cuda {

// Requires a CUDA driver; see kernels/device/plugin.h.
Backend& cuda_backend();

// The GPU part of `dp_train env`.

// One line each: the runtime, the libraries, each of `count` devices, and how each pair exchanges data.
std::string describe_devices(int count);

// Peak rates of a GPU, from its clocks and NVIDIA's documents on its generation.

// Zeros for an unknown generation.
Rates device_rates(int device, DType type);

// The compute capability (90 for 9.0) that the current device's code was compiled for. It is lower than the device's if
// the build has code only for an older one.
int compiled_capability();
// Whether the current device runs machine code for sm_90a, which has wgmma, and not code that the driver made from PTX.
bool has_wgmma();

}  // namespace dp::kernels::cuda
