// Which layers a kernel of ours fuses with what is beside them.
#pragma once

#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Whether the op is one of fused_layers.h (in kernels/) with a kernel of its own, and small enough for a launch to count.
bool fuses(const OpDesc& desc);

}  // namespace dp::kernels::cuda
