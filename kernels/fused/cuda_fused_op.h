// Convolutions fused with batch normalisation, executed as separate ops one after another. This is
// the baseline. With the fastest convolution it is also one more candidate next to the fused kernels.
#pragma once

#include "kernels/tuning/candidates.h"

namespace dp::kernels::cuda {

// `desc`: a descriptor for which inner_convolution() returns a convolution. Returns null if `convolution` is null.
std::unique_ptr<CudaOp> unfused(const OpDesc& desc, std::unique_ptr<CudaOp> convolution, const CudaOpOptions& options);
// implementation() of this op.
std::string unfused_name(const std::string& convolution);

}  // namespace dp::kernels::cuda
