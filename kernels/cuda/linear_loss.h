// A linear layer with the loss of its result, by one block. In loss.cu.
#pragma once

#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

bool fits_one_block(const LinearLoss& desc);
std::unique_ptr<CudaOp> make_linear_loss(const LinearLoss& desc);  // of one that fits

}  // namespace dp::kernels::cuda
