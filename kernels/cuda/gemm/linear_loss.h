// A linear layer fused with the loss of its result, one warp per sample. Defined in loss.cu.
#pragma once

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

std::unique_ptr<CudaOp> make_linear_loss(const LinearLoss& desc);  // float32; x has two dimensions

}  // namespace dp::kernels::cuda
