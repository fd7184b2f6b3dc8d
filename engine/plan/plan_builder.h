// Builds the steps of a Plan from the fused nodes of a model. Used only by plan.cpp.
#pragma once

#include <vector>

#include "engine/plan/plan_layers.h"
#include "engine/plan/plan_norm.h"

namespace dp::engine {

class PlanBuilder {
 public:
  PlanBuilder(const PlanOptions& options, kernels::Context& context, const ParameterTable* table,
              const NormTable& norms)
      : plan_(options, context, table, norms) {}

  PlanParts build(const Model& model);  // once

 private:
  void forward_node(const Node& node, NodeResult& result);
  void forward_weighted(const Node& node, const PlanValue& x, NodeResult& result);
  void forward_max_pool(const Node& node, const PlanValue& x, NodeResult& result);
  void end_forward();  // logits and loss, or the output for the next stage
  void cross_entropy(const PlanValue& logits);

  void backward_node(const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients);
  void backward_weighted(const Node& node, const PlanValue& dy, const NodeResult& result);
  void weight_gradients(const Node& node, const PlanValue& dy, const NodeResult& result);

  PlanDraft plan_;
  PlanGradients gradients_{plan_};
  FusedNorms fused_{plan_, gradients_};
  NormSteps norms_{plan_, gradients_, fused_};
  FusedLayers layers_{plan_, gradients_};
};

}  // namespace dp::engine
