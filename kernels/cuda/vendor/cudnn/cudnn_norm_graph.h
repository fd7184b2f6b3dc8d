// A convolution and what a batch normalisation beside it does, as one graph of cuDNN's operations. The forms are those that its
// precompiled engines know; those that are compiled at run time may know them, too.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_conv_graph.h"

namespace dp::kernels::cuda {

struct CudnnNormConvolution {
  CudnnConvolution convolution;  // neither bias nor ReLU
  // Forward and weight gradient: of max(0, x * kCudnnScale + kCudnnBias), which are of x's type, C each.
  bool norm = false;
  // Forward: kCudnnSum and kCudnnSquares are each channel's sum of y and of y * y, float32.
  bool statistics = false;
  // Data gradient: kCudnnDz = z > 0 ? dx + kCudnnDy2 : 0 (dy2 with `add`), z = (kCudnnX - kCudnnMean) * kCudnnInvStd * kCudnnScale +
  // kCudnnBias, with `result` + kCudnnResult. The numbers are float32, C each.
  bool add = false, result = false;
  // kCudnnDBias and kCudnnDScale are each channel's sum of dz and of dz * xhat, xhat = (x - mean) * inv_std; kCudnnDyFactor,
  // kCudnnXFactor, kCudnnConstant are written, too. All float32, C each. Without: z with `result` is kCudnnResult alone, and where there is
  // no `mask`, dz = dx + dy2.
  bool sums = true, mask = true;
};

// CudnnRefusal where cuDNN does not know the types or the layouts.
std::shared_ptr<const CudnnGraph> norm_convolution_graph(const CudnnTarget& target, const CudnnNormConvolution& c);

}  // namespace dp::kernels::cuda
