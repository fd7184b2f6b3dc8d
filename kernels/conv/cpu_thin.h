// The weight gradient of a convolution with few input channels, e.g. the first layer on grey images
// (docs/decisions/0009).
#pragma once

#include <memory>

#include "kernels/device/cpu/cpu_op.h"

namespace dp::kernels {

// Requires x in nchw, dy in blocks of 8 or 16 channels, and kernel size 1, 3, 5 or 7. dw may have any layout; any()
// becomes row-major. Returns nullptr otherwise.
std::unique_ptr<HostOp> make_thin_backward_weights(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
