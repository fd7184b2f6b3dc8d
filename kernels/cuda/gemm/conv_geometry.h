// The geometry of a convolution or a linear layer from its tensors. Layouts must be resolved.
#pragma once

#include "kernels/cuda/gemm/gemm_geometry.h"
#include "kernels/cuda/gemm/linear_tensors.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Error(usage) when an image, or all rows of the product, are more than the kernels count (2^31).
Geometry geometry_of(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window);
// Features in the order in which they lie in x.
Geometry linear_geometry(const TensorDesc& x, const TensorDesc& w);

}  // namespace dp::kernels::cuda
