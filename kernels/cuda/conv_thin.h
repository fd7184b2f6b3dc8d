// Convolutions of images of few channels, the first layer of a network: too little to multiply for tiles of matrices, so each
// thread reads the image where it lies.
#pragma once

#include "kernels/cuda/conv_bias.h"
#include "kernels/cuda/gemm_geometry.h"

namespace dp::kernels::cuda {

bool is_thin(const Geometry& geometry);

class ThinForward {
 public:
  ThinForward(const Geometry& geometry, bool bias, bool relu)
      : geometry_(geometry), ending_{1, bias, relu, false, false} {}
  void enqueue(cudaStream_t stream, const float* x, const float* w, const float* bias, float* y) const;

 private:
  Geometry geometry_;
  Ending ending_;
};

class ThinWeights {
 public:
  explicit ThinWeights(const Geometry& geometry);

  std::size_t workspace_bytes() const;
  void enqueue(cudaStream_t stream, const float* x, const float* dy, float* dw, float* workspace) const;

 private:
  Geometry geometry_;
  int chunks_;  // of the cells of y, each with sums of its own in the workspace
};

}  // namespace dp::kernels::cuda
