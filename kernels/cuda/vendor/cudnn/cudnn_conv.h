// Convolutions with cuDNN.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_candidates.h"
#include "kernels/cuda/vendor/cudnn/cudnn_conv_graph.h"

namespace dp::kernels::cuda {

// The convolution of a descriptor, with layouts resolved as in our own ops. nullopt for other descriptors.
std::optional<CudnnConvolution> cudnn_convolution(const OpDesc& desc);

// Candidates "cudnn:eng12 k2=3 k13=1", in the order of the heuristics: at most kMaxCudnnCandidates, one with
// options.deterministic. Empty if cuDNN is missing or does not support the convolution. For convolutions fused with a
// batch normalisation: see cudnn_norm_conv.h.
std::vector<Candidate> cudnn_candidates(const OpDesc& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
