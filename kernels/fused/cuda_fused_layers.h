// Selection of the layers that are fused into one kernel.
#pragma once

#include "kernels/ops.h"

namespace dp::kernels::cuda {

// True if `desc` is an op of kernels/fused/fused_layers.h that has a fused kernel and is small
// enough for the cost of a launch to matter.
bool fuses(const OpDesc& desc);

}  // namespace dp::kernels::cuda
