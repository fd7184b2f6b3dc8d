// Candidates for an op: the cuDNN engines that support its graph.
#pragma once

#include "kernels/cuda/tuning/candidates.h"
#include "kernels/cuda/vendor/cudnn/cudnn_run.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
