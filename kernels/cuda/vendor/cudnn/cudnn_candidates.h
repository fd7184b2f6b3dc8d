// The engines of cuDNN that have a graph, as ways to compute an op.
#pragma once

#include "kernels/cuda/tuning/candidates.h"
#include "kernels/cuda/vendor/cudnn/cudnn_run.h"

namespace dp::kernels::cuda {

// At most so many, with options.deterministic one.
inline constexpr std::size_t kMostCudnnWays = 8;

struct CudnnCandidateOp {
  const char* name;    // of the op that they compute
  std::string ending;  // of the ways' names: " widened"
  bool is_f32 = false;
};
using CudnnOpMaker = std::function<std::unique_ptr<CudaOp>(CudnnRun run, bool tf32)>;

// `graph` may throw CudnnRefusal: no ways, as where no engine has it. There is a handle.
std::vector<Candidate> candidates_of_graph(
    const CudnnCandidateOp& op, const std::function<std::shared_ptr<const CudnnGraph>(const CudnnTarget&)>& graph,
    const CudnnOpMaker& make, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
