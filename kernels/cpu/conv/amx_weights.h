// The weight gradient of a convolution in bfloat16 with AMX tiles.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_op.h"

namespace dp::kernels {

// Null if the processor has no AMX, or for shapes and layouts that the kernel does not support. All layouts are set.
std::unique_ptr<HostOp> make_amx_backward_weights(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
