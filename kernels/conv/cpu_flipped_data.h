// The data gradient of a convolution with stride 1 in bfloat16, as a convolution of dy with the flipped and transposed
// weights. oneDNN's forward convolutions with AMX tiles are faster than its data gradients.
#pragma once

#include <memory>

#include "kernels/device/cpu/cpu_op.h"

namespace dp::kernels {

// Null if the processor has no AMX, or for shapes and layouts that it does not support.
std::unique_ptr<HostOp> make_flipped_backward_data(const Conv2dBackwardData& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
