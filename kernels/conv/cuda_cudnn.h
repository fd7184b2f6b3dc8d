// Convolutions with cuDNN. Each engine that supports the graph of an op is a candidate.
#pragma once

#include "kernels/device/cuda/libraries/cudnn_graph.h"
#include "kernels/tuning/candidates.h"

namespace dp::kernels::cuda {

// Candidates for an op: the cuDNN engines that support its graph.

// The limit per graph; with options.deterministic it is one.
inline constexpr std::size_t kMaxCudnnCandidates = 8;

struct CudnnCandidateOp {
  const char* name;    // name of the op
  std::string ending;  // suffix of the candidates' names: " widened"
  bool is_f32 = false;
};
using CudnnOpMaker = std::function<std::unique_ptr<CudaOp>(CudnnRun run, bool tf32)>;

// Returns no candidates if `graph` throws CudnnRefusal or no engine supports it. Requires a cuDNN handle.
std::vector<Candidate> candidates_of_graph(
    const CudnnCandidateOp& op, const std::function<std::shared_ptr<const CudnnGraph>(const CudnnTarget&)>& graph,
    const CudnnOpMaker& make, const CudaOpOptions& options);

// A convolution as a cuDNN graph: forward with bias and ReLU, data gradient, weight gradient.
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

// The convolution of a descriptor, with layouts resolved as in our own ops. nullopt for other descriptors.
std::optional<CudnnConvolution> cudnn_convolution(const OpDesc& desc);

// Candidates "cudnn:eng12 k2=3 k13=1", in the order of the heuristics: at most kMaxCudnnCandidates, one with
// options.deterministic. Empty if cuDNN is missing or does not support the convolution. For convolutions fused with a
// batch normalisation: see cuda_cudnn_norm.h.
std::vector<Candidate> cudnn_candidates(const OpDesc& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
