// The loss.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

void add_loss(Planner& plan, const PlanValue& logits) {
  if (!plan.loss.empty()) return;  // forward_linear() has added it
  const std::int64_t batch = plan.options.batch, outputs = logits.desc.shape.numel() / batch;
  Ref grad{};
  if (plan.options.training) grad = plan.new_value(logits.desc).where;
  const bool scaled = plan.options.training && plan.options.scales_loss;
  const Ref scaler{scaled ? Space::loss_scaler : Space::none};
  const auto add = [&](auto op) {
    plan.add(plan.loss, "loss", "", std::move(op),
             {.logits = logits.where,
              .targets = {Space::labels},
              .inputs = {Space::step_inputs},
              .dlogits = grad,
              .results = {Space::step_results},
              .scaler = scaler});
  };
  if (const auto& loss = plan.options.output_loss)
    add(plan.make(LossOfOutputs{*loss, batch, outputs, scaled, plan.options.sample_weights}));
  else
    add(plan.make(SoftmaxCrossEntropy{batch, outputs, scaled}));
  plan.logits_grad = grad;
}

}  // namespace dp::engine
