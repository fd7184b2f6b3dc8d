// Convolutions with a batch normalisation beside them by cuDNN's fused engines, for 16-bit tensors. What these engines do otherwise than
// the ops one after another, and what of it was seen: docs/decisions/0024-libraries-at-run-time.md.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_candidates.h"
#include "kernels/cuda/vendor/cudnn/cudnn_norm_graph.h"

namespace dp::kernels::cuda {

// One of the descriptors NormConv2dForward, NormConv2dBackwardData, NormConv2dBackwardWeights.
struct CudnnFused {
  CudnnNormConvolution graph;  // the first to ask for
  bool moments = false;        // forward: they are a result
  std::optional<double> eps;   // forward: so are the stats
  bool relu = false;           // data gradient
};
// Layouts are resolved as our own ops do it. Nothing for other descriptors, other types, and where there is nothing to fuse.
std::optional<CudnnFused> cudnn_norm_convolution(const OpDesc& desc);

// Ways "cudnn:eng12 k2=3 k13=1 fused", which take the tensors of the plain convolution; as many as of that. Where no engine has the
// sums of a data gradient: with the mask alone, "fused mask". There is a handle.
std::vector<Candidate> cudnn_norm_candidates(const char* name, const CudnnFused& fused, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
