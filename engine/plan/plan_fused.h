// Steps in which a convolution performs parts of the adjacent batch normalisations (docs/decisions/0025).
#pragma once

#include "engine/plan/plan_gradients.h"

namespace dp::engine {

class FusedNorms {
 public:
  FusedNorms(PlanDraft& plan, PlanGradients& gradients) : plan_(plan), gradients_(gradients) {}

  bool takes_moments(const Node& conv) const;
  const Node* deferred_norm(const Node& conv) const;  // the normalisation that the convolution computes itself, or null
  bool sums_gradient(const Node& conv) const;         // conv also computes the gradient sums of the norm before it
  bool defers(const Node& norm, const kernels::TensorDesc& x);
  bool forward(const Node& node, const PlanValue& x, NodeResult& result);  // false: no fusion
  kernels::NormConv2dBackwardWeights backward_weights(const Node& node, const kernels::TensorDesc& x,
                                                      const kernels::TensorDesc& dy) const;
  void backward_data(const Node& node, const PlanValue& dy);  // with the gradient sums

 private:
  bool is_faster(const Node& conv, const kernels::NormConv2dForward& with, const kernels::NormConv2dForward& without);
  kernels::NormConv2dForward forward_desc(const Node& conv, const kernels::TensorDesc& x, bool norm) const;

  PlanDraft& plan_;
  PlanGradients& gradients_;
};

}  // namespace dp::engine
