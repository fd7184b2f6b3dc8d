// Batch normalisation in a plan: the statistics of this part, merging them with the other parts, and the steps that use
// them.
#pragma once

#include <vector>

#include "engine/plan/plan_fused.h"

namespace dp::engine {

class NormSteps {
 public:
  NormSteps(PlanDraft& plan, PlanGradients& gradients, FusedNorms& fused)
      : plan_(plan), gradients_(gradients), fused_(fused) {}

  void forward(const Node& node, const PlanValue& x, NodeResult& result);
  // A convolution with the normalisation after it, in one op.
  void forward_folded(const Node& conv, const Node& norm, const PlanValue& x, NodeResult& result);
  void backward(const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients);
  void update_running();

 private:
  PlanValue new_folded(const kernels::TensorDesc& desc);
  void forward_after_fold(const Node& norm, NodeResult& result);
  // Called when the gradient sums are computed. `masks`: dz is dy, not yet masked by ReLU.
  void finish(const Node& node, const NodeResult& result, const NodeGradient& dz, bool masks);

  PlanDraft& plan_;
  PlanGradients& gradients_;
  FusedNorms& fused_;
};

}  // namespace dp::engine
