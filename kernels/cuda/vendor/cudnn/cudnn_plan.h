// How cuDNN would compute a graph: engines, set up as its heuristics advise, and the plans made of them.
#pragma once

#include <memory>

#include "kernels/cuda/vendor/cudnn/cudnn_graph.h"

namespace dp::kernels::cuda {

// Which engines may be taken. Those that round their inputs, or what they add up, to fewer bits than the types have, never are.
struct CudnnRules {
  bool deterministic = false;  // the same bits in every run
  bool tf32 = false;           // tensor cores for float32
  bool fast = false;           // Winograd's and Fourier's ways
  bool is_f32 = false;         // all tensors are
};

class CudnnConfig {
 public:
  CudnnConfig(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor config);

  // Of the engine and how it is set up: "eng12 k2=3 k13=1"; the same in every run with the same cuDNN.
  const std::string& name() const { return name_; }
  bool has(CudnnNote note) const { return (notes_ >> static_cast<int>(note) & 1u) != 0; }
  bool allowed(const CudnnRules& rules) const;
  bool compiles() const { return compiles_; }  // its kernels, when a plan is made: seconds
  const CudnnDescriptor& get() const { return config_; }

 private:
  std::shared_ptr<const CudnnGraph> graph_;  // that the engine refers to
  CudnnDescriptor config_;
  std::string name_;
  unsigned notes_ = 0;
  bool compiles_ = false;
};

inline constexpr int kMostCompiledCudnnWays = 2;

// In the order of what the heuristics say is fastest, each once; at most so many, and kMostCompiledCudnnWays that compile.
std::vector<std::shared_ptr<const CudnnConfig>> configs_of(const CudnnTarget& target,
                                                           const std::shared_ptr<const CudnnGraph>& graph,
                                                           const CudnnRules& rules, std::size_t most);

class CudnnPlan {
 public:
  // CudnnRefusal where the engine can not do it after all.
  CudnnPlan(const CudnnTarget& target, std::shared_ptr<const CudnnConfig> config);
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  CudnnBackendDescriptor get() const { return plan_.get(); }

 private:
  std::shared_ptr<const CudnnConfig> config_;
  CudnnDescriptor plan_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace dp::kernels::cuda
