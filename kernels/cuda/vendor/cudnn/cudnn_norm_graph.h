// A convolution and its batch normalisation as one cuDNN graph. The graphs follow the patterns of cuDNN's precompiled
// engines. Engines compiled at run time may support them too.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_conv_graph.h"

namespace dp::kernels::cuda {

struct CudnnNormConvolution {
  CudnnConvolution convolution;  // without bias and ReLU
  // Forward and weight gradient: the input is max(0, x * kCudnnScale + kCudnnBias). Both have C elements of x's type.
  bool norm = false;
  // Forward: also write kCudnnSum and kCudnnSquares, the sums of y and of y * y per channel, in float32.
  bool statistics = false;
  // Data gradient: kCudnnDz = z > 0 ? dx + kCudnnDy2 : 0. z = (kCudnnX - kCudnnMean) * kCudnnInvStd * kCudnnScale +
  // kCudnnBias + kCudnnResult. `add` includes kCudnnDy2, `result` includes kCudnnResult. Mean, inv_std, scale and bias
  // are float32, C elements each.
  bool add = false, result = false;
  // `sums`: also write kCudnnDBias and kCudnnDScale, the sums of dz and of dz * xhat per channel, and kCudnnDyFactor,
  // kCudnnXFactor and kCudnnConstant. All are float32, C elements each. xhat = (x - mean) * inv_std. Without `sums`, z
  // is kCudnnResult alone if `result` is set. Without `mask`, which requires `add` and no `sums`, dz = dx + dy2.
  bool sums = true, mask = true;
};

// CudnnRefusal if cuDNN does not support the types or the layouts.
std::shared_ptr<const CudnnGraph> norm_convolution_graph(const CudnnTarget& target, const CudnnNormConvolution& c);

}  // namespace dp::kernels::cuda
