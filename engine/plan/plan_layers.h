// Steps in which a layer's op includes adjacent layers: pools, dropout, ReLU's mask, the loss (docs/decisions/0034).
#pragma once

#include "engine/plan/plan_gradients.h"

namespace dp::engine {

// Each function returns false if it does not fuse.
class FusedLayers {
 public:
  FusedLayers(PlanDraft& plan, PlanGradients& gradients) : plan_(plan), gradients_(gradients) {}

  bool forward_with_pool(const Node& conv, const PlanValue& x, NodeResult& result);
  bool forward_with_dropout(const Node& linear, const PlanValue& x, NodeResult& result);
  bool forward_with_loss(const Node& linear, const PlanValue& x, NodeResult& result);
  bool backward_with_mask(const Node& conv, const PlanValue& dy, const NodeResult& result);  // the data gradient
  bool backward_with_pool(const Node& linear, const PlanValue& dy, const NodeResult& result);
  bool backward_at_once(const Node& linear, const PlanValue& dy, const NodeResult& result);  // both gradients

 private:
  int masked_input(const Node& node) const;  // the conv or linear node with ReLU that only `node` reads, or -1

  PlanDraft& plan_;
  PlanGradients& gradients_;
};

}  // namespace dp::engine
