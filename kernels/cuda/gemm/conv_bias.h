// Bias gradient: the sum of dy over N,H,W for each channel.
#pragma once

#include "dp/shape.h"
#include "kernels/cuda/gemm/gemm_geometry.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
