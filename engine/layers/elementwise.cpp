// Layers that treat each element alike.
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

namespace {

// Sets x and y of `result`, in one layout.
void set_operands(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  result.x = plan.as(plan.forward, node.name, x, plan.computed(x.desc));
  result.y = plan.new_value(result.x.desc);
}

}  // namespace

void forward_add(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  result.x = plan.as(plan.forward, node.name, x, plan.computed(x.desc));
  const PlanValue b = plan.as(plan.forward, node.name, plan.result_of(node.inputs[1]), result.x.desc);
  result.y = plan.new_value(result.x.desc);
  plan.add(plan.forward, node.name, "", plan.make(AddForward{result.x.desc, node.relu}),
           {.a = result.x.where, .b = b.where, .y = result.y.where});
}

void backward_add(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult&) {
  const bool both = plan.needs_gradient(node.inputs[0]) && plan.needs_gradient(node.inputs[1]);
  plan.gradients.give(node.inputs[0], dy.value, dy.owned && !both);
  plan.gradients.give(node.inputs[1], dy.value, dy.owned && !both);
}

void forward_relu(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  set_operands(plan, node, x, result);
  plan.add(plan.forward, node.name, "", plan.make(ReluForward{result.x.desc}),
           {.x = result.x.where, .y = result.y.where});
}

NodeGradient backward_relu(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue to = plan.gradients.in_place_or_new(dy);
  plan.add(plan.backward, node.name, node.kind == NodeKind::relu ? "backward" : "relu_backward",
           plan.make(ReluBackward{dy.value.desc, result.scale}),
           {.dy = dy.value.where, .y = result.y.where, .dx = to.where});
  return {to, true};
}

void forward_activation(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  set_operands(plan, node, x, result);
  plan.add(plan.forward, node.name, "", plan.make(FunctionForward{result.x.desc, *node.function}),
           {.x = result.x.where, .y = result.y.where});
}

void backward_activation(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  const PlanValue to = plan.gradients.in_place_or_new(dy);
  plan.add(plan.backward, node.name, "backward", plan.make(FunctionBackward{dy.value.desc, *node.function}),
           {.dy = dy.value.where, .x = result.x.where, .dx = to.where});
  plan.gradients.give(node.inputs[0], to, true);
}

void forward_dropout(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  set_operands(plan, node, x, result);
  plan.add(plan.forward, node.name, "", plan.make(DropoutApply{result.x.desc, *node.dropout}),
           {.x = result.x.where, .y = result.y.where, .samples = {Space::samples}, .inputs = {Space::step_inputs}});
}

void backward_dropout(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result) {
  if (result.joined) return plan.gradients.give(node.inputs[0], dy.value, dy.owned);
  const PlanValue to = plan.gradients.in_place_or_new(dy);
  plan.add(plan.backward, node.name, "backward", plan.make(DropoutApply{dy.value.desc, *node.dropout}),
           {.x = dy.value.where, .y = to.where, .samples = {Space::samples}, .inputs = {Space::step_inputs}});
  plan.gradients.give(node.inputs[0], to, true);
}

}  // namespace dp::engine
