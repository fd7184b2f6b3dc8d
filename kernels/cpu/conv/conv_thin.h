// The weight gradient of a convolution that reads few channels, such as a network's first on grey images.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_op.h"

namespace dp::kernels {

// x in nchw, dy in blocks of 8 or 16 channels, kernels 1, 3, 5, 7; dw in any layout (row-major when it is the op's choice).
// nullptr for anything else.
std::unique_ptr<HostOp> make_thin_backward_weights(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
