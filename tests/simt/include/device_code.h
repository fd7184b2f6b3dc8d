// The simulated twin of kernels/cuda/native/device_code.h: what a .cu file may use, executed on the CPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "kernels/cuda/runtime/launch.h"
#include "simt/device/atomics.h"
#include "simt/device/launch.h"
#include "simt/device/math.h"
#include "simt/device/qualifiers.h"
#include "simt/device/shared.h"
#include "simt/device/warp.h"
