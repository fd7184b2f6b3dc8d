// Convolutions fused with batch normalisation, with cuDNN.
#pragma once

#include "kernels/conv/cuda_cudnn.h"

namespace dp::kernels::cuda {

// A convolution and its batch normalisation as one cuDNN graph. The graphs follow the patterns of cuDNN's precompiled
// engines. Engines compiled at run time may support them too.
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

// Convolutions fused with a batch normalisation by cuDNN's engines, for 16-bit tensors.
// docs/decisions/0024-libraries-at-run-time.md lists the differences from the unfused ops, and which were observed.

// A NormConv2dForward, NormConv2dBackwardData or NormConv2dBackwardWeights.
struct CudnnFused {
  CudnnNormConvolution graph;  // the first graph to try
  bool moments = false;        // forward: write the moments
  std::optional<double> eps;   // forward: write the stats
  bool relu = false;           // data gradient: apply the ReLU mask
};
// Layouts are resolved as in our own ops. nullopt for other descriptors, other types, and if there is nothing to fuse.
std::optional<CudnnFused> cudnn_norm_convolution(const OpDesc& desc);

// Candidates "cudnn:eng12 k2=3 k13=1 fused", at most kMaxCudnnCandidates. They use the tensors of the plain
// convolution. If no engine computes the sums of a data gradient, our kernel does ("fused mask"). If no engine writes a
// float32 weight gradient, a 16-bit one is converted ("fused widened"). Requires a cuDNN handle.
std::vector<Candidate> cudnn_norm_candidates(const char* name, const CudnnFused& fused, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
