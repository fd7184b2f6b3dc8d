// The simulated twin of kernels/cuda/native/ptx.h: the instructions that are inline PTX there, lane by lane.
#pragma once

#include "simt/device/async_copy.h"
#include "simt/device/matrix.h"
