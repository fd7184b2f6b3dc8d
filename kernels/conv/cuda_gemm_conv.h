// Convolutions as matrix products: geometry (also of linear layers) and bias gradient.
#pragma once

#include "dp/shape.h"
#include "kernels/device/cuda/cuda_op.h"
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

Strides strides_of(const TensorDesc& tensor);  // (N,C,H,W)
// Error(usage) if N*H*W of x or y, the number of weights, or the elements of one image exceed 2^30 - 1: kernels use
// 32-bit indices.
void require_countable(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y);
// Error(usage) for the same reasons, and unless is_plain().
Geometry geometry_of(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const Window& window);
// Of a tensor dy, for BiasGradient.
inline Geometry dense_geometry(const TensorDesc& dy) {
  return geometry_of(dy, resolved_plain({{1, dy.shape[1], 1, 1}, dy.type, {}}), dy, Window{.kernel = 1});
}
// Features are numbered in x's memory order.
Geometry linear_geometry(const TensorDesc& x, const TensorDesc& w);

// Convolutions that are not plain, in cuda_direct.cu. Layouts must be resolved.
std::unique_ptr<CudaOp> make_direct(const Conv2dForward& desc);
std::unique_ptr<CudaOp> make_direct(const Conv2dBackwardData& desc);
std::unique_ptr<CudaOp> make_direct(const Conv2dBackwardWeights& desc);

}  // namespace dp::kernels::cuda
