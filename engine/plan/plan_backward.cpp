// The backward part of the plan builder.
#include "engine/plan/plan_builder.h"

namespace dp::engine {

using namespace kernels;

void PlanBuilder::backward_node(const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients) {
  if (node.kind == NodeKind::norm) return norms_.backward(node, result, std::move(gradients));
  if (result.unpooled) return gradients_.give(node.inputs[0], gradients.front().value, true);
  PlanSteps& steps = plan_.backward;
  NodeGradient dy = gradients_.sum(node, result, std::move(gradients));
  const PlanValue& from = dy.value;
  const bool folded_relu = node.relu && node.kind != NodeKind::max_pool && !result.masked;
  if (folded_relu || node.kind == NodeKind::relu) {
    const PlanValue to = gradients_.in_place_or_new(dy);
    plan_.add(steps, node.name, node.kind == NodeKind::relu ? "backward" : "relu_backward",
              plan_.make(ReluBackward{from.desc, result.scale}),
              {.dy = from.where, .y = result.y.where, .dx = to.where});
    dy = {to, true};
  }
  switch (node.kind) {
    case NodeKind::conv:
    case NodeKind::linear: return backward_weighted(node, dy.value, result);
    case NodeKind::max_pool: {
      auto op = plan_.make(MaxPool2dBackward{from.desc, result.x.desc, node.window, node.dropout});
      const PlanValue dx = plan_.new_value(result.x.desc);
      plan_.add(steps, node.name, "backward", std::move(op),
                {.dy = from.where, .mask = result.saved.where, .dx = dx.where});
      return gradients_.give(node.inputs[0], dx, true);
    }
    case NodeKind::avg_pool: {
      auto op = plan_.make(AvgPool2dBackward{from.desc, result.x.desc, node.window, node.global});
      const PlanValue dx = plan_.new_value(result.x.desc);
      plan_.add(steps, node.name, "backward", std::move(op), {.dy = from.where, .dx = dx.where});
      return gradients_.give(node.inputs[0], dx, true);
    }
    case NodeKind::add: {
      const bool both = plan_.needs_gradient(node.inputs[0]) && plan_.needs_gradient(node.inputs[1]);
      gradients_.give(node.inputs[0], dy.value, dy.owned && !both);
      return gradients_.give(node.inputs[1], dy.value, dy.owned && !both);
    }
    case NodeKind::activation: {
      const PlanValue to = gradients_.in_place_or_new(dy);
      plan_.add(steps, node.name, "backward", plan_.make(FunctionBackward{from.desc, *node.function}),
                {.dy = from.where, .x = result.x.where, .dx = to.where});
      return gradients_.give(node.inputs[0], to, true);
    }
    case NodeKind::dropout: {
      if (result.joined) return gradients_.give(node.inputs[0], dy.value, dy.owned);
      const PlanValue to = gradients_.in_place_or_new(dy);
      plan_.add(steps, node.name, "backward", plan_.make(DropoutApply{from.desc, *node.dropout}),
                {.x = from.where, .y = to.where, .samples = {Space::samples}, .inputs = {Space::step_inputs}});
      return gradients_.give(node.inputs[0], to, true);
    }
    case NodeKind::norm:  // handled above
    case NodeKind::relu: return gradients_.give(node.inputs[0], dy.value, dy.owned);
  }
}

void PlanBuilder::backward_weighted(const Node& node, const PlanValue& dy, const NodeResult& result) {
  const bool conv = node.kind == NodeKind::conv, splits = plan_.options.split_backward;
  if (!conv && !splits && layers_.backward_at_once(node, dy, result)) return;
  if (splits)
    gradients_.add_later([this, &node, dy, &result] {
      weight_gradients(node, dy, result);
      gradients_.finished(node.weight, node.bias);
    });
  else
    weight_gradients(node, dy, result);

  if (conv && fused_.sums_gradient(node)) return fused_.backward_data(node, dy);
  const bool fused = conv ? layers_.backward_with_mask(node, dy, result) : layers_.backward_with_pool(node, dy, result);
  const auto add_data_gradient = [&](const auto& desc) {
    auto op = plan_.make(desc);
    const TensorDesc wanted_dy = op.tensors()[0], wanted_w = op.tensors()[1], produced = op.tensors()[2];
    const PlanValue grad = plan_.as(plan_.backward, node.name + " backward_data", dy, wanted_dy);
    const PlanValue weight = gradients_.weight_of(node, wanted_w);
    const PlanValue dx = plan_.new_value(produced);
    plan_.add(plan_.backward, node.name, "backward_data", std::move(op),
              {.dy = grad.where, .w = weight.where, .dx = dx.where});
    gradients_.give(node.inputs[0], dx, true);
  };
  const TensorDesc x = plan_.activation_desc(result.x.desc), w = plan_.any(weight_shape(node)),
                   any_dy = plan_.any(dy.desc.shape);
  if (!fused && plan_.needs_gradient(node.inputs[0])) {
    if (conv)
      add_data_gradient(Conv2dBackwardData{any_dy, w, x, node.window});
    else
      add_data_gradient(LinearBackwardData{any_dy, w, x});
  }
  if (!splits) gradients_.finished(node.weight, node.bias);
}

void PlanBuilder::weight_gradients(const Node& node, const PlanValue& dy, const NodeResult& result) {
  PlanSteps& steps = gradients_.steps();
  const bool conv = node.kind == NodeKind::conv;
  const TensorDesc x = plan_.activation_desc(result.x.desc), full_w = plan_.any_full(weight_shape(node));
  const Node* const norm = conv ? fused_.deferred_norm(node) : nullptr;
  const auto add_gradients = [&]<typename D>(const D& desc) {
    auto op = plan_.make(desc);
    const TensorDesc wanted_x = op.tensors()[0], wanted_dy = op.tensors()[1], produced = op.tensors()[2];
    const PlanValue from = plan_.as(steps, node.name + " backward_weights", result.x, wanted_x);
    const PlanValue grad = plan_.as(steps, node.name + " backward_weights", dy, wanted_dy);
    const PlanValue dw = gradients_.target(node.weight, produced);
    PlanValue db;
    if (node.bias >= 0) db = gradients_.target(node.bias, plan_.channels_desc(node.output[0]));
    if constexpr (std::is_same_v<D, NormConv2dBackwardWeights>)
      plan_.add(steps, node.name, "backward_weights", std::move(op),
                {.x = from.where,
                 .stats = plan_.results[index(node.inputs[0])].saved.where,
                 .weight = plan_.parameter_place(norm->weight),
                 .bias = plan_.parameter_place(norm->bias),
                 .dy = grad.where,
                 .dw = dw.where});
    else
      plan_.add(steps, node.name, "backward_weights", std::move(op),
                {.x = from.where, .dy = grad.where, .dw = dw.where, .db = db.where});
    gradients_.store(node.name + " weight", node.weight, dw);
    if (node.bias >= 0) gradients_.store(node.name + " bias", node.bias, db);
  };
  if (norm != nullptr)
    add_gradients(fused_.backward_weights(node, x, dy.desc));
  else if (conv)
    add_gradients(Conv2dBackwardWeights{x, dy.desc, full_w, node.window, node.bias >= 0});
  else
    add_gradients(LinearBackwardWeights{x, dy.desc, full_w, node.bias >= 0});
}

}  // namespace dp::engine
