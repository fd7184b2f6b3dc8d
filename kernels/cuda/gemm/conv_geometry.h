// Geometry of a convolution or a linear layer from its tensors. Layouts must be resolved.
#pragma once

#include "kernels/cuda/gemm/gemm_geometry.h"
#include "kernels/cuda/gemm/linear_tensors.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Error(usage) if N*H*W of x or y, the number of weights, or the elements of one image exceed 2^30 - 1: kernels use
// 32-bit indices.
Geometry geometry_of(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window);
// Features are numbered in x's memory order.
Geometry linear_geometry(const TensorDesc& x, const TensorDesc& w);

}  // namespace dp::kernels::cuda
