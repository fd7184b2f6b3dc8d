// Our own convolutions where oneDNN has none or slower ones; for Winograd's and those with AMX tiles see cpu_winograd.h
// and cpu_amx.h.
#pragma once

#include <memory>

#include "kernels/device/cpu/cpu_op.h"

namespace dp::kernels {

// The weight gradient with few input channels, e.g. of the first layer on grey images (docs/decisions/0009). Requires x
// in nchw, dy in blocks of 8 or 16 channels, and kernel size 1, 3, 5 or 7. dw may have any layout; any() becomes
// row-major. Returns nullptr otherwise.
std::unique_ptr<HostOp> make_thin_backward_weights(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

// The weight gradient of a depthwise convolution (one channel a group), for any window and any layout that keeps the
// channels of a pixel together. Where x or dy is row-major or any(), the op requires blocks of channels. Null for other
// convolutions.
std::unique_ptr<HostOp> make_depthwise_backward_weights(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

// The data gradient with stride 1 in bfloat16, as a convolution of dy with the flipped and transposed weights. oneDNN's
// forward convolutions with AMX tiles are faster than its data gradients. Null if the processor has no AMX, or for
// shapes and layouts that it does not support.
std::unique_ptr<HostOp> make_flipped_backward_data(const Conv2dBackwardData& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
