// How cuDNN computes a graph: engine configurations from its heuristics, and their plans.
#pragma once

#include <memory>

#include "kernels/cuda/vendor/cudnn/cudnn_graph.h"

namespace dp::kernels::cuda {

// Which engines are allowed. Engines that round inputs or sums to fewer bits than their types have are always rejected.
struct CudnnRules {
  bool deterministic = false;  // only engines with the same bits in every run
  bool tf32 = false;           // allow tensor cores for float32
  bool fast = false;           // allow Winograd and FFT
  bool is_f32 = false;         // all tensors are float32
};

class CudnnConfig {
 public:
  CudnnConfig(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor config);

  // The engine and its knobs: "eng12 k2=3 k13=1". The same in every run with the same cuDNN.
  const std::string& name() const { return name_; }
  bool has(CudnnNote note) const { return (notes_ >> static_cast<int>(note) & 1u) != 0; }
  bool allowed(const CudnnRules& rules) const;
  bool compiles() const { return compiles_; }  // making a plan compiles kernels: seconds
  const CudnnDescriptor& get() const { return config_; }

 private:
  std::shared_ptr<const CudnnGraph> graph_;  // the engine refers to it
  CudnnDescriptor config_;
  std::string name_;
  unsigned notes_ = 0;
  bool compiles_ = false;
};

inline constexpr int kMaxCompiledCudnnCandidates = 2;

// Distinct configurations, the fastest first by the heuristics. At most `most`, and at most kMaxCompiledCudnnCandidates
// that compile kernels.
std::vector<std::shared_ptr<const CudnnConfig>> configs_of(const CudnnTarget& target,
                                                           const std::shared_ptr<const CudnnGraph>& graph,
                                                           const CudnnRules& rules, std::size_t most);

class CudnnPlan {
 public:
  // CudnnRefusal if the engine does not support the graph after all.
  CudnnPlan(const CudnnTarget& target, std::shared_ptr<const CudnnConfig> config);
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  CudnnBackendDescriptor get() const { return plan_.get(); }

 private:
  std::shared_ptr<const CudnnConfig> config_;
  CudnnDescriptor plan_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace dp::kernels::cuda
