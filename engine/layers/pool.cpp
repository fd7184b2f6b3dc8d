// Pooling, resampling and zero padding.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

void forward_max_pool(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  PlanSteps& steps = plan.forward;
  const bool training = plan.options.training;
  auto op = plan.make(MaxPool2dForward{plan.computed(x.desc), plan.batched(node.output), node.window, node.relu,
                                       training, node.dropout});
  result.x = plan.as(steps, node.name, x, op.tensors()[0]);
  result.y = plan.new_value(op.tensors()[1]);
  if (training) result.saved = plan.new_mask(result.y);
  plan.add(steps, node.name, "", std::move(op),
           {.x = result.x.where,
            .y = result.y.where,
            .mask = result.saved.where,
            .samples = {node.dropout ? Space::samples : Space::none},
            .inputs = {node.dropout ? Space::step_inputs : Space::none}});
}

void backward_max_pool(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  auto op = plan.make(MaxPool2dBackward{dy.value.desc, result.x.desc, node.window, node.dropout});
  const PlanValue dx = plan.new_value(result.x.desc);
  plan.add(plan.backward, node.name, "backward", std::move(op),
           {.dy = dy.value.where, .mask = result.saved.where, .dx = dx.where});
  plan.gradients.give(node.inputs[0], dx, true);
}

void forward_avg_pool(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  auto op = plan.make(AvgPool2dForward{plan.computed(x.desc), plan.batched(node.output), node.window, node.adaptive});
  result.x = plan.as(plan.forward, node.name, x, op.tensors()[0]);
  result.y = plan.new_value(op.tensors()[1]);
  plan.add(plan.forward, node.name, "", std::move(op), {.x = result.x.where, .y = result.y.where});
}

void backward_avg_pool(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  auto op = plan.make(AvgPool2dBackward{dy.value.desc, result.x.desc, node.window, node.adaptive});
  const PlanValue dx = plan.new_value(result.x.desc);
  plan.add(plan.backward, node.name, "backward", std::move(op), {.dy = dy.value.where, .dx = dx.where});
  plan.gradients.give(node.inputs[0], dx, true);
}

void forward_resample(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  auto op = plan.make(ResampleForward{plan.computed(x.desc), plan.batched(node.output), node.resampling});
  result.x = plan.as(plan.forward, node.name, x, op.tensors()[0]);
  result.y = plan.new_value(op.tensors()[1]);
  plan.add(plan.forward, node.name, "", std::move(op), {.x = result.x.where, .y = result.y.where});
}

void backward_resample(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  auto op = plan.make(ResampleBackward{dy.value.desc, result.x.desc, node.resampling});
  const PlanValue dx = plan.new_value(result.x.desc);
  plan.add(plan.backward, node.name, "backward", std::move(op), {.dy = dy.value.where, .dx = dx.where});
  plan.gradients.give(node.inputs[0], dx, true);
}

}  // namespace dp::engine
