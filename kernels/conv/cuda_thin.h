// Convolutions whose input has few channels: the first layer of a network. Their products
// are too small for matrix tiles, so each thread reads the image directly.
#pragma once

#include "kernels/device/cuda/runtime.h"
#include "kernels/linear/cuda_gemm.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

inline constexpr int kThinChannels = 3;  // of x, at most
bool is_thin(const Geometry& geometry);

class ThinForward {
 public:
  // type: of x, w and y.
  ThinForward(DType type, const Geometry& geometry, bool bias, bool relu)
      : type_(type), geometry_(geometry), ending_{1, bias, relu, false, false} {}
  void enqueue(cudaStream_t stream, const void* x, const void* w, const float* bias, void* y) const;

 private:
  DType type_;
  Geometry geometry_;
  Ending ending_;
};

class ThinWeights {
 public:
  // type: of x and dy. bias: also compute the bias gradient.
  ThinWeights(DType type, const Geometry& geometry, bool bias);

  std::size_t workspace_bytes() const;
  // db: null without bias. workspace: workspace_bytes().
  void enqueue(cudaStream_t stream, const void* x, const void* dy, float* dw, float* db, float* workspace) const;

 private:
  DType type_;
  Geometry geometry_;
  bool bias_;
  int chunks_;  // of the cells of y; each chunk has its own partial sums in the workspace
  DeviceMemory counters_;
};

}  // namespace dp::kernels::cuda
