// The simulated twin of kernels/cuda/native/ptx.h: the instructions that are inline PTX there, lane by lane.
#pragma once

#include "simulated_cuda/device/async_copy.h"
#include "simulated_cuda/device/matrix.h"
