// Convolutions of 3 x 3 with stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications of a direct one, as
// 36 matrix products of oneDNN (docs/decisions/0016). Activations are in blocks of channels; weights are in blocks with
// contiguous output channels.
#pragma once

#include <memory>

#include "kernels/device/cpu/cpu_op.h"
#include "kernels/ops.h"

namespace dp::kernels {

// Null if a layout or the window is not supported. Layouts must be resolved.
std::unique_ptr<HostOp> make_winograd(const Conv2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

// The rule for using Winograd, oneDNN's or our own, in place of oneDNN's direct convolutions.

enum class ConvPass { forward, data, weights };

// Whether Winograd pays for these shapes. `result` is the shape of the pass's result; for ConvPass::weights it is the
// shape of the convolution's output. Only shapes decide, so that equal plans compute equal bits.
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window);

// Whether our own Winograd computes the gradient of these weights faster than oneDNN's: true if the transformed weights
// (36 floats per pair of channels) far exceed the second-level cache.
bool own_winograd_pays(const Shape& weights);

}  // namespace dp::kernels
