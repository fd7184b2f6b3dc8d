#include "kernels/cuda/vendor/cudnn/cudnn_ways.h"

namespace dp::kernels::cuda {

std::vector<Way> ways_of_graph(const CudnnWayOp& op,
                               const std::function<std::shared_ptr<const CudnnGraph>(const CudnnTarget&)>& graph,
                               const CudnnOpMaker& make, const CudaOpOptions& options) try {
  const CudnnTarget target{cudnn().api, options.libraries->cudnn_handle()};
  const CudnnRules rules{options.deterministic, options.tf32, options.fast_convolutions, op.is_f32};
  std::vector<Way> ways;
  for (const auto& config : configs_of(target, graph(target), rules, options.deterministic ? 1 : kMostCudnnWays)) {
    const bool tf32 = op.is_f32 && config->has(CudnnNote::tensor_core);
    const std::string way = "cudnn:" + config->name() + (tf32 ? " tf32" : "") + op.ending;
    ways.push_back({way, [=, name = op.name, libraries = options.libraries]() -> std::unique_ptr<CudaOp> {
                      try {
                        CudnnPlan plan(target, config);
                        if (plan.workspace_bytes() > kMostLibraryWorkspace) return nullptr;
                        return make(CudnnRun(name, way, std::move(plan), libraries), tf32);
                      } catch (const CudnnRefusal&) {
                        return nullptr;
                      }
                    }});
  }
  return ways;
} catch (const CudnnRefusal&) {
  return {};
}

}  // namespace dp::kernels::cuda
