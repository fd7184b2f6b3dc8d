#include "engine/plan/plan_builder.h"

namespace dp::engine {

using namespace kernels;

PlanParts PlanBuilder::build(const Model& model) {
  const PlanOptions& options = plan_.options;
  plan_.parameter_layouts.resize(model.parameters().size());
  for (std::size_t i = 0; i < plan_.parameter_layouts.size(); ++i)
    plan_.parameter_layouts[i] = plan_.context.plain_layout(model.parameters()[i].shape, plan_.context.compute_type());
  plan_.nodes = fuse(model, options.dropout && options.training);
  const std::vector<Node>& nodes = plan_.nodes;
  plan_.neighbours = norm_neighbours(nodes, options.norm == BatchNormMode::sync);

  const Shape input = model.input().prepended(options.batch);
  if (options.input) {
    plan_.images = plan_.new_value(*options.input);
    plan_.input = {plan_.images.where, plan_.images.desc};
  } else {
    plan_.images = {{Space::input, 0}, {input, DType::f32, plan_.context.plain_layout(input, DType::f32)}};
  }
  plan_.results.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeResult& result = plan_.results[i];
    result.needs_gradient = nodes[i].weight >= 0;
    for (const int from : nodes[i].inputs) result.needs_gradient |= plan_.needs_gradient(from);
    forward_node(nodes[i], result);
  }

  end_forward();
  if (options.training) {
    gradients_.begin(model.parameters().size());
    for (std::size_t i = nodes.size(); i-- > 0;)
      if (plan_.results[i].needs_gradient)
        backward_node(nodes[i], plan_.results[i], std::move(gradients_.summands(static_cast<int>(i))));
    gradients_.end();
    norms_.update_running();
  }
  plan_.place_buffers();
  return std::move(static_cast<PlanParts&>(plan_));
}

void PlanBuilder::end_forward() {
  const PlanValue& output = plan_.results.back().y;
  if (!plan_.options.last) {
    plan_.output = plan_.border(output, plan_.steps_so_far);  // valid until the first step of backward has run
    return;
  }
  TensorDesc plain = plan_.any_full(output.desc.shape);
  plain.layout = plan_.context.plain_layout(plain.shape, plain.type);
  const PlanValue logits = plan_.as(plan_.forward, "logits", output, plain);
  plan_.logits = logits.where;
  cross_entropy(logits);
}

void PlanBuilder::forward_node(const Node& node, NodeResult& result) {
  if (result.joined) return;
  PlanSteps& steps = plan_.forward;
  const PlanValue& x = plan_.result_of(node.inputs[0]);
  switch (node.kind) {
    case NodeKind::conv:
    case NodeKind::linear: return forward_weighted(node, x, result);
    case NodeKind::norm: return norms_.forward(node, x, result);
    case NodeKind::max_pool: return forward_max_pool(node, x, result);
    case NodeKind::avg_pool: {
      auto op =
          plan_.make(AvgPool2dForward{plan_.computed(x.desc), plan_.batched(node.output), node.window, node.global});
      result.x = plan_.as(steps, node.name, x, op.tensors()[0]);
      result.y = plan_.new_value(op.tensors()[1]);
      plan_.add(steps, node.name, "", std::move(op), {.x = result.x.where, .y = result.y.where});
      return;
    }
    case NodeKind::add: {
      result.x = plan_.as(steps, node.name, x, plan_.computed(x.desc));
      const PlanValue b = plan_.as(steps, node.name, plan_.result_of(node.inputs[1]), result.x.desc);
      result.y = plan_.new_value(result.x.desc);
      plan_.add(steps, node.name, "", plan_.make(AddForward{result.x.desc, node.relu}),
                {.a = result.x.where, .b = b.where, .y = result.y.where});
      return;
    }
    case NodeKind::relu:
      result.x = plan_.as(steps, node.name, x, plan_.computed(x.desc));
      result.y = plan_.new_value(result.x.desc);
      plan_.add(steps, node.name, "", plan_.make(ReluForward{result.x.desc}),
                {.x = result.x.where, .y = result.y.where});
      return;
    case NodeKind::activation:
      result.x = plan_.as(steps, node.name, x, plan_.computed(x.desc));
      result.y = plan_.new_value(result.x.desc);
      plan_.add(steps, node.name, "", plan_.make(FunctionForward{result.x.desc, *node.function}),
                {.x = result.x.where, .y = result.y.where});
      return;
    case NodeKind::dropout:
      result.x = plan_.as(steps, node.name, x, plan_.computed(x.desc));
      result.y = plan_.new_value(result.x.desc);
      plan_.add(
          steps, node.name, "", plan_.make(DropoutApply{result.x.desc, *node.dropout}),
          {.x = result.x.where, .y = result.y.where, .samples = {Space::samples}, .inputs = {Space::step_inputs}});
  }
}

void PlanBuilder::forward_weighted(const Node& node, const PlanValue& x, NodeResult& result) {
  PlanSteps& steps = plan_.forward;
  const bool conv = node.kind == NodeKind::conv;
  if (const Node* const norm = conv ? plan_.folded_norm(node) : nullptr)
    return norms_.forward_folded(node, *norm, x, result);
  if (conv ? fused_.forward(node, x, result) || layers_.forward_with_pool(node, x, result)
           : layers_.forward_with_dropout(node, x, result) || layers_.forward_with_loss(node, x, result))
    return;
  TensorDesc in = plan_.activation_desc(x.desc);
  const TensorDesc w = plan_.any(weight_shape(node));
  const auto add_layer = [&](const auto& desc) {
    auto op = plan_.make(desc);
    const TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
    const PlanValue from = plan_.as(steps, node.name, x, wanted_x);
    const PlanValue weight = plan_.parameter(plan_.forward, node.name + " weight", node.weight, wanted_w);
    result.x = plan_.mixed() && x.desc.type != from.desc.type ? from : x;  // mixed precision: cast the images once
    result.y = plan_.new_value(out);
    plan_.add(steps, node.name, "", std::move(op),
              {.x = from.where, .w = weight.where, .b = plan_.parameter_place(node.bias), .y = result.y.where});
  };
  if (conv)
    add_layer(Conv2dForward{in, w, plan_.batched(node.output), node.window, node.bias >= 0, node.relu});
  else
    add_layer(LinearForward{in, w, plan_.batched(node.output), node.bias >= 0, node.relu});
}

void PlanBuilder::forward_max_pool(const Node& node, const PlanValue& x, NodeResult& result) {
  PlanSteps& steps = plan_.forward;
  const bool training = plan_.options.training;
  auto op = plan_.make(MaxPool2dForward{plan_.computed(x.desc), plan_.batched(node.output), node.window, node.relu,
                                        training, node.dropout});
  result.x = plan_.as(steps, node.name, x, op.tensors()[0]);
  result.y = plan_.new_value(op.tensors()[1]);
  if (training) result.saved = plan_.new_mask(result.y);
  plan_.add(steps, node.name, "", std::move(op),
            {.x = result.x.where,
             .y = result.y.where,
             .mask = result.saved.where,
             .samples = {node.dropout ? Space::samples : Space::none},
             .inputs = {node.dropout ? Space::step_inputs : Space::none}});
}

void PlanBuilder::cross_entropy(const PlanValue& logits) {
  if (!plan_.loss.empty()) return;  // layers_.forward_with_loss() has added it
  const std::int64_t batch = plan_.options.batch;
  Ref grad{};
  if (plan_.options.training) grad = plan_.new_value(logits.desc).where;
  const bool scaled = plan_.options.training && plan_.options.scales_loss;
  plan_.add(plan_.loss, "loss", "", plan_.make(SoftmaxCrossEntropy{batch, logits.desc.shape.numel() / batch, scaled}),
            {.logits = logits.where,
             .labels = {Space::labels},
             .inputs = {Space::step_inputs},
             .dlogits = grad,
             .results = {Space::step_results},
             .scaler = {scaled ? Space::loss_scaler : Space::none}});
  plan_.logits_grad = grad;
}

}  // namespace dp::engine
