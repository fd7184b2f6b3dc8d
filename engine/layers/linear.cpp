// Linear layers, with what their ops compute of the layers before and after them: dropout, the loss, pools and ReLU
// masks (docs/decisions/0034).
#include "engine/layers/layers.h"

namespace dp::engine {

using namespace kernels;

int masked_input(const PlanDraft& plan, const Node& node) {
  int from = node.inputs[0];
  if (from < 0 || plan.sole_reader(plan.nodes[index(from)]) != plan.number_of(node)) return -1;
  if (plan.results[index(from)].joined && plan.nodes[index(from)].kind == NodeKind::dropout)
    from = plan.nodes[index(from)].inputs[0];
  const Node& before = plan.nodes[index(from)];
  const bool layer = before.kind == NodeKind::conv || before.kind == NodeKind::linear;
  return layer && before.relu && plan.results[index(from)].needs_gradient ? from : -1;
}

namespace {

// Adds one op for the layer and the dropout after it. Returns false if they cannot be fused.
bool forward_with_dropout(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const int reader = plan.sole_reader(node);
  if (!node.relu || reader < 0 || plan.nodes[index(reader)].kind != NodeKind::dropout) return false;
  const Node& dropout = plan.nodes[index(reader)];
  const TensorDesc in = plan.activation_desc(x.desc);
  const TensorDesc w = plan.any(weight_shape(node));
  const LinearDropoutForward desc{{in, w, plan.batched(node.output), node.bias >= 0, true}, *dropout.dropout};
  if (!plan.context.fuses(desc)) return false;
  PlanSteps& steps = plan.forward;
  auto op = plan.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue from = plan.as(steps, node.name, x, tensors[0]);
  const PlanValue weight = plan.parameter(plan.forward, node.name + " weight", node.weight, tensors[1]);
  result.x = plan.mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = plan.new_value(tensors[2]);
  result.scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(dropout.dropout->p)));
  NodeResult& dropped = plan.results[index(reader)];
  dropped.joined = true;
  dropped.x = dropped.y = result.y;
  plan.add(steps, node.name + "+" + dropout.name, "", std::move(op),
           {.x = from.where,
            .w = weight.where,
            .b = plan.parameter_place(node.bias),
            .y = result.y.where,
            .samples = {Space::samples},
            .inputs = {Space::step_inputs}});
  return true;
}

// Adds one op for the last layer and the loss. Returns false if they cannot be fused.
bool forward_with_loss(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  const PlanOptions& options = plan.options;
  if (!options.joins_loss || options.output_loss || &node != &plan.nodes.back() || plan.mixed()) return false;
  TensorDesc logits = plan.batched(node.output);
  logits.layout = plan.context.plain_layout(logits.shape, logits.type);
  const LinearLoss desc{{x.desc, plan.any(weight_shape(node)), logits, node.bias >= 0, node.relu},
                        {options.batch, node.output[0], options.scales_loss}};
  if (!plan.context.fuses(desc)) return false;
  auto op = plan.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  result.x = plan.as(plan.forward, node.name, x, tensors[0]);
  const PlanValue weight = plan.parameter(plan.forward, node.name + " weight", node.weight, tensors[1]);
  result.y = plan.new_value(tensors[2]);
  plan.logits_grad = plan.new_value(tensors[2]).where;
  plan.add(plan.loss, node.name + "+loss", "", std::move(op),
           {.x = result.x.where,
            .w = weight.where,
            .b = plan.parameter_place(node.bias),
            .logits = result.y.where,
            .targets = {Space::labels},
            .inputs = {Space::step_inputs},
            .dlogits = plan.logits_grad,
            .results = {Space::step_results},
            .scaler = {options.scales_loss ? Space::loss_scaler : Space::none}});
  return true;
}

// Adds one op for the data gradient and the pool before the layer. Returns false if they cannot be fused.
bool backward_with_pool(Planner& plan, const Node& node, const PlanValue& dy, const NodeResult& result) {
  const int from = node.inputs[0];
  if (from < 0 || plan.nodes[index(from)].kind != NodeKind::max_pool || !plan.needs_gradient(from) ||
      plan.sole_reader(plan.nodes[index(from)]) != plan.number_of(node))
    return false;
  const Node& pool = plan.nodes[index(from)];
  NodeResult& pooled = plan.results[index(from)];
  const LinearPoolBackwardData desc{{plan.any(dy.desc.shape), plan.any(weight_shape(node)), pooled.y.desc},
                                    {pooled.y.desc, pooled.x.desc, pool.window, pool.dropout}};
  if (result.x.where.offset != pooled.y.where.offset || !plan.context.fuses(desc)) return false;
  add_data_gradient(plan, node, dy, desc, [&](Ref grad, Ref weight, Ref dx) -> LinearPoolBackwardData::Args<Ref> {
    return {.dy = grad, .w = weight, .mask = pooled.saved.where, .dx = dx};
  });
  pooled.unpooled = true;
  return true;
}

// Adds one op for both gradients and the ReLU before the layer. Returns false if they cannot be fused.
bool backward_at_once(Planner& plan, const Node& node, const PlanValue& dy, const NodeResult& result) {
  const int before = masked_input(plan, node);
  if (before < 0 || result.x.where.offset != plan.results[index(before)].y.where.offset) return false;
  const Shape weights = weight_shape(node);
  const LinearReluBackward desc{{result.x.desc, dy.desc, plan.any_full(weights), node.bias >= 0},
                                {dy.desc, plan.any(weights), result.x.desc},
                                plan.results[index(before)].scale};
  if (!plan.context.fuses(desc)) return false;
  PlanSteps& steps = plan.backward;
  auto op = plan.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue grad = plan.as(steps, node.name + " backward", dy, tensors[1]);
  const PlanValue weight = plan.gradients.weight_of(node, tensors[3]);
  const PlanValue dw = plan.gradients.target(node.weight, tensors[2]);
  PlanValue db;
  if (node.bias >= 0) db = plan.gradients.target(node.bias, plan.channels_desc(node.output[0]));
  const PlanValue dx = plan.new_value(tensors[4]);
  plan.add(steps, node.name, "backward", std::move(op),
           {.x = result.x.where, .dy = grad.where, .w = weight.where, .dw = dw.where, .db = db.where, .dx = dx.where});
  plan.gradients.store(node.name + " weight", node.weight, dw);
  if (node.bias >= 0) plan.gradients.store(node.name + " bias", node.bias, db);
  plan.results[index(before)].masked = true;
  plan.gradients.give(node.inputs[0], dx, true);
  plan.gradients.finished(node.weight, node.bias);
  return true;
}

}  // namespace

void forward_linear(Planner& plan, const Node& node, const PlanValue& x, NodeResult& result) {
  if (forward_with_dropout(plan, node, x, result) || forward_with_loss(plan, node, x, result)) return;
  add_forward(plan, node, x, result,
              LinearForward{plan.activation_desc(x.desc), plan.any(weight_shape(node)), plan.batched(node.output),
                            node.bias >= 0, node.relu, plan.options.training});
}

void backward_linear(Planner& plan, const Node& node, const NodeGradient& gradient, const NodeResult& result) {
  const PlanValue& dy = gradient.value;
  const bool splits = plan.options.split_backward;
  if (!splits && plan.trains(node) && backward_at_once(plan, node, dy, result)) return;
  plan.gradients.of_weights(node, [&plan, &node, dy, &result] {
    add_weight_gradients(plan, node, dy, result,
                         LinearBackwardWeights{plan.activation_desc(result.x.desc), dy.desc,
                                               plan.any_full(weight_shape(node)), node.bias >= 0},
                         [](Ref from, Ref grad, Ref dw, Ref db) -> LinearBackwardWeights::Args<Ref> {
                           return {.x = from, .dy = grad, .dw = dw, .db = db};
                         });
  });
  if (!backward_with_pool(plan, node, dy, result) && plan.needs_gradient(node.inputs[0]))
    add_data_gradient(
        plan, node, dy,
        LinearBackwardData{plan.any(dy.desc.shape), plan.any(weight_shape(node)), plan.activation_desc(result.x.desc)});
  if (!splits) plan.gradients.finished(node.weight, node.bias);
}

}  // namespace dp::engine
