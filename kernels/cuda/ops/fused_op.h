// Convolutions with a batch normalisation beside them, as their parts in turn: the pinned way to compute them, and with the fastest
// convolution a further one beside the kernels that fuse.
#pragma once

#include "kernels/cuda/tuning/candidates.h"

namespace dp::kernels::cuda {

// Null where the convolution can not be made. `desc`: one of those that inner_convolution() knows.
std::unique_ptr<CudaOp> unfused(const OpDesc& desc, std::unique_ptr<CudaOp> convolution, const CudaOpOptions& options);
// What implementation() says of it.
std::string unfused_name(const std::string& convolution);

}  // namespace dp::kernels::cuda
