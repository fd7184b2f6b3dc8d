// Convolutions of 3 x 3 and stride 1 by Winograd's F(4x4, 3x3): a quarter of the products of a direct one, as 36 matrix
// products of oneDNN. For tensors in blocks of channels and weights in blocks of outputs side by side.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_op.h"

namespace dp::kernels {

// Null when a layout is none of these. Layouts must be resolved.
std::unique_ptr<HostOp> make_winograd(const Conv2dForward& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardData& desc, const CpuOpOptions& options);
std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardWeights& desc, const CpuOpOptions& options);

}  // namespace dp::kernels
