#include "engine/plan/plan_layers.h"

namespace dp::engine {

using namespace kernels;

int FusedLayers::masked_input(const Node& node) const {
  int from = node.inputs[0];
  if (from < 0 || plan_.sole_reader(plan_.nodes[index(from)]) != plan_.number_of(node)) return -1;
  if (plan_.results[index(from)].joined && plan_.nodes[index(from)].kind == NodeKind::dropout)
    from = plan_.nodes[index(from)].inputs[0];
  const Node& before = plan_.nodes[index(from)];
  const bool layer = before.kind == NodeKind::conv || before.kind == NodeKind::linear;
  return layer && before.relu && plan_.results[index(from)].needs_gradient ? from : -1;
}

bool FusedLayers::forward_with_pool(const Node& node, const PlanValue& x, NodeResult& result) {
  const int reader = plan_.sole_reader(node);
  // The convolution's result is not stored, but the gradient of its own ReLU would read it.
  if (node.relu || reader < 0 || plan_.nodes[index(reader)].kind != NodeKind::max_pool) return false;
  const Node& pool = plan_.nodes[index(reader)];
  const bool training = plan_.options.training;
  const TensorDesc in = plan_.activation_desc(x.desc);
  const TensorDesc w = plan_.any(weight_shape(node));
  const TensorDesc y = plan_.batched(node.output);
  const Conv2dPoolForward desc{{in, w, y, node.window, node.bias >= 0, node.relu},
                               {y, plan_.batched(pool.output), pool.window, pool.relu, training, pool.dropout}};
  if (!plan_.context.fuses(desc)) return false;
  PlanSteps& steps = plan_.forward;
  auto op = plan_.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue from = plan_.as(steps, node.name, x, tensors[0]);
  const PlanValue weight = plan_.parameter(plan_.forward, node.name + " weight", node.weight, tensors[1]);
  result.x = plan_.mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = {{}, tensors[2]};
  NodeResult& pooled = plan_.results[index(reader)];
  pooled.joined = true;
  pooled.x = result.y;
  pooled.y = plan_.new_value(tensors[3]);
  if (training) pooled.saved = plan_.new_mask(pooled.y);
  const bool drops = pool.dropout.has_value();
  plan_.add(steps, node.name + "+" + pool.name, "", std::move(op),
            {.x = from.where,
             .w = weight.where,
             .b = plan_.parameter_place(node.bias),
             .y = pooled.y.where,
             .mask = pooled.saved.where,
             .samples = {drops ? Space::samples : Space::none},
             .inputs = {drops ? Space::step_inputs : Space::none}});
  return true;
}

bool FusedLayers::forward_with_dropout(const Node& node, const PlanValue& x, NodeResult& result) {
  const int reader = plan_.sole_reader(node);
  if (!node.relu || reader < 0 || plan_.nodes[index(reader)].kind != NodeKind::dropout) return false;
  const Node& dropout = plan_.nodes[index(reader)];
  const TensorDesc in = plan_.activation_desc(x.desc);
  const TensorDesc w = plan_.any(weight_shape(node));
  const LinearDropoutForward desc{{in, w, plan_.batched(node.output), node.bias >= 0, true}, *dropout.dropout};
  if (!plan_.context.fuses(desc)) return false;
  PlanSteps& steps = plan_.forward;
  auto op = plan_.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue from = plan_.as(steps, node.name, x, tensors[0]);
  const PlanValue weight = plan_.parameter(plan_.forward, node.name + " weight", node.weight, tensors[1]);
  result.x = plan_.mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = plan_.new_value(tensors[2]);
  result.scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(dropout.dropout->p)));
  NodeResult& dropped = plan_.results[index(reader)];
  dropped.joined = true;
  dropped.x = dropped.y = result.y;
  plan_.add(steps, node.name + "+" + dropout.name, "", std::move(op),
            {.x = from.where,
             .w = weight.where,
             .b = plan_.parameter_place(node.bias),
             .y = result.y.where,
             .samples = {Space::samples},
             .inputs = {Space::step_inputs}});
  return true;
}

bool FusedLayers::forward_with_loss(const Node& node, const PlanValue& x, NodeResult& result) {
  const PlanOptions& options = plan_.options;
  if (!options.joins_loss || &node != &plan_.nodes.back() || plan_.mixed()) return false;
  TensorDesc logits = plan_.batched(node.output);
  logits.layout = plan_.context.plain_layout(logits.shape, logits.type);
  const LinearLoss desc{{x.desc, plan_.any(weight_shape(node)), logits, node.bias >= 0, node.relu},
                        {options.batch, node.output[0], options.scales_loss}};
  if (!plan_.context.fuses(desc)) return false;
  auto op = plan_.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  result.x = plan_.as(plan_.forward, node.name, x, tensors[0]);
  const PlanValue weight = plan_.parameter(plan_.forward, node.name + " weight", node.weight, tensors[1]);
  result.y = plan_.new_value(tensors[2]);
  plan_.logits_grad = plan_.new_value(tensors[2]).where;
  plan_.add(plan_.loss, node.name + "+loss", "", std::move(op),
            {.x = result.x.where,
             .w = weight.where,
             .b = plan_.parameter_place(node.bias),
             .logits = result.y.where,
             .labels = {Space::labels},
             .inputs = {Space::step_inputs},
             .dlogits = plan_.logits_grad,
             .results = {Space::step_results},
             .scaler = {options.scales_loss ? Space::loss_scaler : Space::none}});
  return true;
}

bool FusedLayers::backward_with_mask(const Node& node, const PlanValue& dy, const NodeResult& result) {
  const int before = masked_input(node);
  if (before < 0 || result.x.where.offset != plan_.results[index(before)].y.where.offset) return false;
  const TensorDesc w = plan_.any(weight_shape(node));
  const Conv2dReluBackwardData desc{{plan_.any(dy.desc.shape), w, result.x.desc, node.window}};
  if (plan_.results[index(before)].scale != 1 || !plan_.context.fuses(desc)) return false;
  PlanSteps& steps = plan_.backward;
  auto op = plan_.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue grad = plan_.as(steps, node.name + " backward_data", dy, tensors[0]);
  const PlanValue weight = gradients_.weight_of(node, tensors[1]);
  const PlanValue dx = plan_.new_value(tensors[2]);
  plan_.add(steps, node.name, "backward_data", std::move(op),
            {.dy = grad.where, .w = weight.where, .x = result.x.where, .dx = dx.where});
  plan_.results[index(before)].masked = true;
  gradients_.give(node.inputs[0], dx, true);
  return true;
}

bool FusedLayers::backward_with_pool(const Node& node, const PlanValue& dy, const NodeResult& result) {
  const int from = node.inputs[0];
  if (from < 0 || plan_.nodes[index(from)].kind != NodeKind::max_pool || !plan_.needs_gradient(from) ||
      plan_.sole_reader(plan_.nodes[index(from)]) != plan_.number_of(node))
    return false;
  const Node& pool = plan_.nodes[index(from)];
  NodeResult& pooled = plan_.results[index(from)];
  const LinearPoolBackwardData desc{{plan_.any(dy.desc.shape), plan_.any(weight_shape(node)), pooled.y.desc},
                                    {pooled.y.desc, pooled.x.desc, pool.window, pool.dropout}};
  if (result.x.where.offset != pooled.y.where.offset || !plan_.context.fuses(desc)) return false;
  PlanSteps& steps = plan_.backward;
  auto op = plan_.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue grad = plan_.as(steps, node.name + " backward_data", dy, tensors[0]);
  const PlanValue weight = gradients_.weight_of(node, tensors[1]);
  const PlanValue dx = plan_.new_value(tensors[3]);
  plan_.add(steps, node.name, "backward_data", std::move(op),
            {.dy = grad.where, .w = weight.where, .mask = pooled.saved.where, .dx = dx.where});
  pooled.unpooled = true;
  gradients_.give(from, dx, true);
  return true;
}

bool FusedLayers::backward_at_once(const Node& node, const PlanValue& dy, const NodeResult& result) {
  const int before = masked_input(node);
  if (before < 0 || result.x.where.offset != plan_.results[index(before)].y.where.offset) return false;
  const Shape weights = weight_shape(node);
  const LinearReluBackward desc{{result.x.desc, dy.desc, plan_.any_full(weights), node.bias >= 0},
                                {dy.desc, plan_.any(weights), result.x.desc},
                                plan_.results[index(before)].scale};
  if (!plan_.context.fuses(desc)) return false;
  PlanSteps& steps = plan_.backward;
  auto op = plan_.make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const PlanValue grad = plan_.as(steps, node.name + " backward", dy, tensors[1]);
  const PlanValue weight = gradients_.weight_of(node, tensors[3]);
  const PlanValue dw = gradients_.target(node.weight, tensors[2]);
  PlanValue db;
  if (node.bias >= 0) db = gradients_.target(node.bias, plan_.channels_desc(node.output[0]));
  const PlanValue dx = plan_.new_value(tensors[4]);
  plan_.add(steps, node.name, "backward", std::move(op),
            {.x = result.x.where, .dy = grad.where, .w = weight.where, .dw = dw.where, .db = db.where, .dx = dx.where});
  gradients_.store(node.name + " weight", node.weight, dw);
  if (node.bias >= 0) gradients_.store(node.name + " bias", node.bias, db);
  plan_.results[index(before)].masked = true;
  gradients_.give(node.inputs[0], dx, true);
  gradients_.finished(node.weight, node.bias);
  return true;
}

}  // namespace dp::engine
