// Convolutions by cuDNN.
#pragma once

#include "kernels/cuda/vendor/cudnn/cudnn_candidates.h"
#include "kernels/cuda/vendor/cudnn/cudnn_conv_graph.h"

namespace dp::kernels::cuda {

// The convolution that a descriptor asks for, its layouts resolved as our own ops do it; nothing for other descriptors.
std::optional<CudnnConvolution> cudnn_convolution(const OpDesc& desc);

// Ways "cudnn:eng12 k2=3 k13=1", what its heuristics advise first; at most kMostCudnnWays, with options.deterministic one. None
// where cuDNN is missing or does not have the convolution. With a batch normalisation beside it: as cudnn_norm_conv.h says.
std::vector<Candidate> cudnn_candidates(const OpDesc& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
