// Finds out whether this process can use CUDA devices, without linking to anything of CUDA.
#pragma once

#include "dp/device.h"

namespace dp::kernels {

// Looks for the driver library and asks it for devices; makes no context. Never throws.
DeviceProbe probe_cuda(const char* driver_library = "libcuda.so.1");

}  // namespace dp::kernels
