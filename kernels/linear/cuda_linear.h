// Layouts and factories of linear layers on CUDA.
#pragma once

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/layout.h"

namespace dp::kernels::cuda {

// Memory layouts of a linear layer's tensors.
struct LinearTensors {
  TensorDesc x, w, y;
};
// Defined in conv/cuda_gemm_conv.cu. Resolves `any` layouts. x becomes channels last, or plain if w has a fixed plain
// layout. w gets the order of x. y becomes plain.
LinearTensors resolved_linear(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y);

// A linear layer fused with the loss of its result, one warp per sample. Defined in loss/cuda.cu.
std::unique_ptr<CudaOp> make_linear_loss(const LinearLoss& desc);  // float32; x has two dimensions

}  // namespace dp::kernels::cuda
