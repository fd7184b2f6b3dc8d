// Convolutions as matrix products: geometry (also of linear layers) and bias gradient.
#pragma once

#include "dp/shape.h"
#include "kernels/linear/cuda_gemm.h"
#include "kernels/linear/cuda_linear.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Bias gradient: the sum of dy over N,H,W for each channel.
class BiasGradient {
 public:
  // `geometry`: its y describes dy. `type`: of dy.
  BiasGradient(DType type, const Geometry& geometry);

  std::size_t workspace_bytes() const { return static_cast<std::size_t>(chunks_) * channels_ * sizeof(float); }
  void enqueue(cudaStream_t stream, const void* dy, float* db, float* workspace) const;

 private:
  DType type_;
  Strides strides_;
  int channels_, cells_, height_, width_, chunks_;
};

// Geometry of a convolution or a linear layer from its tensors. Layouts must be resolved.

// Error(usage) if N*H*W of x or y, the number of weights, or the elements of one image exceed 2^30 - 1: kernels use
// 32-bit indices.
Geometry geometry_of(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window);
// Features are numbered in x's memory order.
Geometry linear_geometry(const TensorDesc& x, const TensorDesc& w);

}  // namespace dp::kernels::cuda
