// A convolution as a graph of cuDNN's operations: forward with its bias and ReLU, data gradient, weight gradient.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_graph.h"

namespace dp::kernels::cuda {

// Layouts are resolved. x and y are the gradients where the direction says so.
struct CudnnConvolution {
  CudnnDirection direction = CudnnDirection::forward;
  TensorDesc x, w, y;
  Window window;
  bool bias = false, relu = false;  // forward
};

// The weights (a gradient) in the type of x.
TensorDesc narrow_weights(const CudnnConvolution& convolution);

// Of kCudnnX, kCudnnW, kCudnnBias, kCudnnY. CudnnRefusal where cuDNN does not know the types or the layouts.
std::shared_ptr<const CudnnGraph> convolution_graph(const CudnnTarget& target, const CudnnConvolution& convolution);

}  // namespace dp::kernels::cuda
