// A linear layer with the loss of its result, a warp for each sample. In loss.cu.
#pragma once

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

std::unique_ptr<CudaOp> make_linear_loss(const LinearLoss& desc);  // float32, x of two dimensions

}  // namespace dp::kernels::cuda
