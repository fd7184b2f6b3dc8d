// Simulated counterpart of kernels/device/cuda/native/ptx.h: the inline PTX instructions, lane by lane.
#pragma once

#include "simulated_cuda/device/async_copy.h"
#include "simulated_cuda/device/matrix.h"
#include "simulated_cuda/device/wgmma.h"
