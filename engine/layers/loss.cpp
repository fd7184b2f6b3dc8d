// The loss.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

void cross_entropy(Planner& plan, const PlanValue& logits) {
  if (!plan.loss.empty()) return;  // forward_linear() has added it
  const std::int64_t batch = plan.options.batch;
  Ref grad{};
  if (plan.options.training) grad = plan.new_value(logits.desc).where;
  const bool scaled = plan.options.training && plan.options.scales_loss;
  plan.add(plan.loss, "loss", "", plan.make(SoftmaxCrossEntropy{batch, logits.desc.shape.numel() / batch, scaled}),
           {.logits = logits.where,
            .labels = {Space::labels},
            .inputs = {Space::step_inputs},
            .dlogits = grad,
            .results = {Space::step_results},
            .scaler = {scaled ? Space::loss_scaler : Space::none}});
  plan.logits_grad = grad;
}

}  // namespace dp::engine
