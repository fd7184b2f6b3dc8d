#include "kernels/cuda/vendor/cudnn/cudnn_candidates.h"

namespace dp::kernels::cuda {

std::vector<Candidate> candidates_of_graph(
    const CudnnCandidateOp& op, const std::function<std::shared_ptr<const CudnnGraph>(const CudnnTarget&)>& graph,
    const CudnnOpMaker& make, const CudaOpOptions& options) try {
  const CudnnTarget target{cudnn().api, options.libraries->cudnn_handle()};
  const CudnnRules rules{options.deterministic, options.tf32, options.fast_convolutions, op.is_f32};
  std::vector<Candidate> candidates;
  for (const auto& config : configs_of(target, graph(target), rules, options.deterministic ? 1 : kMaxCudnnCandidates)) {
    const bool tf32 = op.is_f32 && config->has(CudnnNote::tensor_core);
    const std::string candidate = "cudnn:" + config->name() + (tf32 ? " tf32" : "") + op.ending;
    candidates.push_back(
        {family::cudnn, candidate, [=, name = op.name, libraries = options.libraries]() -> std::unique_ptr<CudaOp> {
           try {
             CudnnPlan plan(target, config);
             if (plan.workspace_bytes() > kMostLibraryWorkspace) return nullptr;
             return make(CudnnRun(name, candidate, std::move(plan), libraries), tf32);
           } catch (const CudnnRefusal&) {
             return nullptr;
           }
         }});
  }
  return candidates;
} catch (const CudnnRefusal&) {
  return {};
}

}  // namespace dp::kernels::cuda
