// Convolutions of 3 x 3 with stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications of a direct one, as
// 36 matrix products of oneDNN (docs/decisions/0016). Activations are in blocks of channels; weights are in blocks with
// contiguous output channels.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_op.h"

namespace dp::kernels {

// Null if a layout or the window is not supported. Layouts must be resolved.
std::unique_ptr<HostOp> make_winograd(const Conv2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
