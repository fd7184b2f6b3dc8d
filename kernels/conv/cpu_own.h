// Our own convolutions where oneDNN has none or slower ones; for those with AMX tiles see cpu_amx.h.
#pragma once

#include <memory>

#include "kernels/device/cpu/cpu_op.h"
#include "kernels/ops.h"

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

// Convolutions of 3 x 3 with stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications of a direct one, as
// 36 matrix products of oneDNN (docs/decisions/0016). Activations are in blocks of channels; weights are in blocks with
// contiguous output channels.

// Null if a layout or the window is not supported. Layouts must be resolved.
std::unique_ptr<HostOp> make_winograd(const Conv2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

// The rule for using Winograd, oneDNN's or our own, in place of oneDNN's direct convolutions.

enum class ConvPass { forward, data, weights };

// Whether Winograd pays for these shapes. `result` is the shape of the pass's result; for ConvPass::weights it is the
// shape of the convolution's output. `amx`: the processor has it. Nothing is measured: equal plans compute equal bits.
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window, bool amx);

// Whether our own Winograd is faster than oneDNN's for these weights, on processors with AMX or without
// (docs/decisions/0048).
bool own_winograd_pays(ConvPass pass, const Shape& weights, bool amx);

}  // namespace dp::kernels
