// Simulated counterpart of kernels/device/cuda/native/device_code.h: all that a .cu file may use, executed on the CPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "kernels/device/cuda/runtime.h"
#include "simulated_cuda/device/atomics.h"
#include "simulated_cuda/device/launch.h"
#include "simulated_cuda/device/math.h"
#include "simulated_cuda/device/qualifiers.h"
#include "simulated_cuda/device/shared.h"
#include "simulated_cuda/device/warp.h"
