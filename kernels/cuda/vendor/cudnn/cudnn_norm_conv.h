// Convolutions fused with a batch normalisation by cuDNN's engines, for 16-bit tensors.
// docs/decisions/0024-libraries-at-run-time.md lists the differences from the unfused ops, and which were observed.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_candidates.h"
#include "kernels/cuda/vendor/cudnn/cudnn_norm_graph.h"

namespace dp::kernels::cuda {

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
