// The rules of the layers: the steps of each kind of node in forward and backward. Plan (engine/plan/plan.cpp) calls
// them in the order of the nodes and in the reverse order. Used only there.
#pragma once

#include <vector>

#include "engine/layers/planner.h"

namespace dp::engine {

// Forward: `x` is the result of the first input. The rule sets x, y and what else backward needs in `result`.
void forward_conv(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_conv_transpose(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_linear(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_norm(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_group_norm(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_max_pool(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_avg_pool(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_resample(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_add(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_multiply(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_concat(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_slice(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_channel_shuffle(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_relu(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_activation(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_prelu(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_reshape(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_softmax(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_dropout(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);
void forward_drop_channels(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result);

// Backward: `dy` is the gradient of the result, without that of a ReLU at the node's end. The rule gives the inputs
// their gradients, and marks those of parameters as finished.
void backward_conv(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_conv_transpose(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_linear(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_group_norm(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_max_pool(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_avg_pool(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_resample(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_add(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_multiply(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_concat(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_slice(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_channel_shuffle(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_activation(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_prelu(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_reshape(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_softmax(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_dropout(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
void backward_drop_channels(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
// Returns dy times the derivative of a ReLU. The ReLU is the node itself or the last part of the node.
NodeGradient backward_relu(Planner& plan, const Node& node, const NodeGradient& dy, const NodeResult& result);
// Takes up to two gradients, because the op adds them.
void backward_norm(Planner& plan, const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients);

void update_running_statistics(Planner& plan);  // of all batch normalisations
void add_loss(Planner& plan, const PlanValue& logits);

// The rules of different layers use these to agree on what is fused.

// The conv or linear node with ReLU that only `node` reads, or -1.
int masked_input(const PlanDraft& plan, const Node& node);
// Adds one op for a convolution and the normalisation after it.
void forward_folded(Planner& plan, const Node& conv, const Node& norm, const PlanValue& x, NodeResult& result);
// Whether the op of `conv` computes the moments of the normalisation after it.
bool takes_moments(const PlanDraft& plan, const Node& conv);
// Whether the convolution after `norm` computes its result from x, which then is not stored.
bool defers(PlanDraft& plan, const Node& norm, const kernels::TensorDesc& x);

// The steps that convolutions and linear layers share. D is the descriptor of the op.

template <typename D>
void add_forward(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result, const D& desc) {
  auto op = plan.make(desc);
  const kernels::TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
  const PlanValue from = plan.as(plan.forward, node.name, x, wanted_x);
  const PlanValue weight = plan.parameter(plan.forward, node.name + " weight", node.weight, wanted_w);
  result.x = plan.mixed() && x.desc.type != from.desc.type ? from : x;  // mixed precision: cast the images once
  result.y = plan.new_value(out);
  plan.add(plan.forward, node.name, "", std::move(op),
           {.x = from.where, .w = weight.where, .b = plan.parameter_place(node.bias), .y = result.y.where});
}

// args(dy, w, dx): the places of the op's arguments. The last tensor of the op is dx.
template <typename D, typename Args>
void add_data_gradient(Planner& plan, const Node& node, const PlanValue& dy, const D& desc, const Args& args) {
  auto op = plan.make(desc);
  const kernels::TensorDesc wanted_dy = op.tensors()[0], wanted_w = op.tensors()[1], produced = op.tensors().back();
  const PlanValue grad = plan.as(plan.backward, node.name + " backward_data", dy, wanted_dy);
  const PlanValue weight = plan.gradients.weight_of(node, wanted_w);
  const PlanValue dx = plan.new_value(produced);
  plan.add(plan.backward, node.name, "backward_data", std::move(op), args(grad.where, weight.where, dx.where));
  plan.gradients.give(node.inputs[0], dx, true);
}
template <typename D>
void add_data_gradient(Planner& plan, const Node& node, const PlanValue& dy, const D& desc) {
  add_data_gradient(plan, node, dy, desc, [](Ref grad, Ref weight, Ref dx) -> typename D::template Args<Ref> {
    return {.dy = grad, .w = weight, .dx = dx};
  });
}

// args(from, dy, dw, db): the places of the op's arguments.
template <typename D, typename Args>
void add_weight_gradients(Planner& plan, const Node& node, const PlanValue& dy, const NodeResult& result, const D& desc,
                          const Args& args) {
  PlanSteps& steps = plan.gradients.steps();
  auto op = plan.make(desc);
  const kernels::TensorDesc wanted_x = op.tensors()[0], wanted_dy = op.tensors()[1], produced = op.tensors()[2];
  const PlanValue from = plan.as(steps, node.name + " backward_weights", result.x, wanted_x);
  const PlanValue grad = plan.as(steps, node.name + " backward_weights", dy, wanted_dy);
  const PlanValue dw = plan.gradients.target(node.weight, produced);
  PlanValue db;
  if (node.bias >= 0) db = plan.gradients.target(node.bias, plan.channels_desc(node.output[0]));
  plan.add(steps, node.name, "backward_weights", std::move(op), args(from.where, grad.where, dw.where, db.where));
  plan.gradients.store(node.name + " weight", node.weight, dw);
  if (node.bias >= 0) plan.gradients.store(node.name + " bias", node.bias, db);
}

}  // namespace dp::engine
