// Selection of the layers that are fused into one kernel.
#pragma once

#include "kernels/ops.h"

namespace dp::kernels::cuda {

// True if `desc` is a layer with the ops beside it (fused/op.h) that has a fused kernel and is small enough that the
// cost of a launch matters.
bool fuses(const OpDesc& desc);

}  // namespace dp::kernels::cuda
