// A convolution as a cuDNN graph: forward with bias and ReLU, data gradient, weight gradient.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_graph.h"

namespace dp::kernels::cuda {

// Layouts are resolved. x is the gradient for backward_data, w for backward_weights. y is the output gradient in both.
struct CudnnConvolution {
  CudnnDirection direction = CudnnDirection::forward;
  TensorDesc x, w, y;
  Window window;
  bool bias = false, relu = false;  // forward only
};

// The weights, or their gradient, in the type of x.
TensorDesc narrow_weights(const CudnnConvolution& convolution);

// A graph of kCudnnX, kCudnnW, kCudnnBias, kCudnnY. CudnnRefusal if cuDNN does not support the types or the layouts.
std::shared_ptr<const CudnnGraph> convolution_graph(const CudnnTarget& target, const CudnnConvolution& convolution);

}  // namespace dp::kernels::cuda
