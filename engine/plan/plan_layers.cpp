// Steps in which a layer's op includes adjacent layers: pools, dropout, ReLU's mask, the loss (docs/decisions/0034).
#include "engine/plan/plan_builder.h"

namespace dp::engine {

using namespace kernels;

int PlanBuilder::sole_reader(const Node& node) const {
  const int own = static_cast<int>(&node - nodes_.data());
  int reader = -1;
  for (std::size_t i = index(own) + 1; i < nodes_.size(); ++i)
    for (const int input : nodes_[i].inputs) {
      if (input != own) continue;
      if (reader >= 0) return -1;
      reader = static_cast<int>(i);
    }
  return reader;
}

int PlanBuilder::masked_input(const Node& node) const {
  int from = node.inputs[0];
  if (from < 0 || sole_reader(nodes_[index(from)]) != static_cast<int>(&node - nodes_.data())) return -1;
  if (results_[index(from)].joined && nodes_[index(from)].kind == NodeKind::dropout)
    from = nodes_[index(from)].inputs[0];
  const Node& before = nodes_[index(from)];
  const bool layer = before.kind == NodeKind::conv || before.kind == NodeKind::linear;
  return layer && before.relu && results_[index(from)].needs_gradient ? from : -1;
}

PlanBuilder::Value PlanBuilder::backward_weight(const Node& node, const TensorDesc& wanted) {
  // Without a table this plan only determines the parameter layouts, which the forward ops choose; it never runs.
  if (table_ == nullptr) return {{Space::value, 0}, wanted};
  return parameter(plan_.backward_, node.name + " backward_data weight", node.weight, wanted);
}

bool PlanBuilder::forward_with_pool(const Node& node, const Value& x, Result& result) {
  const int reader = sole_reader(node);
  // The convolution's result is not stored, but the gradient of its own ReLU would read it.
  if (node.relu || reader < 0 || nodes_[index(reader)].kind != NodeKind::max_pool) return false;
  const Node& pool = nodes_[index(reader)];
  const bool training = plan_.options_.training;
  const TensorDesc in = x.desc.type == context_.activation_type() ? x.desc : any(x.desc.shape);
  const TensorDesc w = any({node.output[0], node.input[0], node.window.kernel, node.window.kernel});
  const TensorDesc y = batched(node.output);
  const Conv2dPoolForward desc{{in, w, y, node.window, node.bias >= 0, node.relu},
                               {y, batched(pool.output), pool.window, pool.relu, training, pool.dropout}};
  if (!context_.fuses(desc)) return false;
  Steps& steps = plan_.forward_;
  auto op = make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const Value from = as(steps, node.name, x, tensors[0]);
  const Value weight = parameter(plan_.forward_, node.name + " weight", node.weight, tensors[1]);
  result.x = mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = {{}, tensors[2]};
  Result& pooled = results_[index(reader)];
  pooled.joined = true;
  pooled.x = result.y;
  pooled.y = new_value(tensors[3]);
  if (training) pooled.saved = new_mask(pooled.y);
  const bool drops = pool.dropout.has_value();
  add(steps, node.name + "+" + pool.name, "", std::move(op),
      {.x = from.where,
       .w = weight.where,
       .b = parameter_place(node.bias),
       .y = pooled.y.where,
       .mask = pooled.saved.where,
       .samples = {drops ? Space::samples : Space::none},
       .inputs = {drops ? Space::step_inputs : Space::none}});
  return true;
}

bool PlanBuilder::forward_with_dropout(const Node& node, const Value& x, Result& result) {
  const int reader = sole_reader(node);
  if (!node.relu || reader < 0 || nodes_[index(reader)].kind != NodeKind::dropout) return false;
  const Node& dropout = nodes_[index(reader)];
  const TensorDesc in = x.desc.type == context_.activation_type() ? x.desc : any(x.desc.shape);
  const TensorDesc w = any({node.output[0], node.input.numel()});
  const LinearDropoutForward desc{{in, w, batched(node.output), node.bias >= 0, true}, *dropout.dropout};
  if (!context_.fuses(desc)) return false;
  Steps& steps = plan_.forward_;
  auto op = make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const Value from = as(steps, node.name, x, tensors[0]);
  const Value weight = parameter(plan_.forward_, node.name + " weight", node.weight, tensors[1]);
  result.x = mixed() && x.desc.type != from.desc.type ? from : x;
  result.y = new_value(tensors[2]);
  result.scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(dropout.dropout->p)));
  Result& dropped = results_[index(reader)];
  dropped.joined = true;
  dropped.x = dropped.y = result.y;
  add(steps, node.name + "+" + dropout.name, "", std::move(op),
      {.x = from.where,
       .w = weight.where,
       .b = parameter_place(node.bias),
       .y = result.y.where,
       .samples = {Space::samples},
       .inputs = {Space::step_inputs}});
  return true;
}

bool PlanBuilder::forward_with_loss(const Node& node, const Value& x, Result& result) {
  const PlanOptions& options = plan_.options_;
  if (!options.joins_loss || &node != &nodes_.back() || mixed()) return false;
  TensorDesc logits = batched(node.output);
  logits.layout = context_.plain_layout(logits.shape, logits.type);
  const LinearLoss desc{{x.desc, any({node.output[0], node.input.numel()}), logits, node.bias >= 0, node.relu},
                        {options.batch, node.output[0], options.scales_loss}};
  if (!context_.fuses(desc)) return false;
  auto op = make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  result.x = as(plan_.forward_, node.name, x, tensors[0]);
  const Value weight = parameter(plan_.forward_, node.name + " weight", node.weight, tensors[1]);
  result.y = new_value(tensors[2]);
  plan_.logits_grad_ = new_value(tensors[2]).where;
  add(plan_.loss_, node.name + "+loss", "", std::move(op),
      {.x = result.x.where,
       .w = weight.where,
       .b = parameter_place(node.bias),
       .logits = result.y.where,
       .labels = {Space::labels},
       .inputs = {Space::step_inputs},
       .dlogits = plan_.logits_grad_,
       .results = {Space::step_results},
       .scaler = {options.scales_loss ? Space::loss_scaler : Space::none}});
  return true;
}

bool PlanBuilder::backward_with_mask(const Node& node, const Value& dy, const Result& result) {
  const int before = masked_input(node);
  if (before < 0 || result.x.where.offset != results_[index(before)].y.where.offset) return false;
  const TensorDesc w = any({node.output[0], node.input[0], node.window.kernel, node.window.kernel});
  const Conv2dReluBackwardData desc{{any(dy.desc.shape), w, result.x.desc, node.window}};
  if (results_[index(before)].scale != 1 || !context_.fuses(desc)) return false;
  Steps& steps = plan_.backward_;
  auto op = make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const Value grad = as(steps, node.name + " backward_data", dy, tensors[0]);
  const Value weight = backward_weight(node, tensors[1]);
  const Value dx = new_value(tensors[2]);
  add(steps, node.name, "backward_data", std::move(op),
      {.dy = grad.where, .w = weight.where, .x = result.x.where, .dx = dx.where});
  results_[index(before)].masked = true;
  give(node.inputs[0], dx, true);
  return true;
}

bool PlanBuilder::backward_with_pool(const Node& node, const Value& dy, const Result& result) {
  const int from = node.inputs[0];
  if (from < 0 || nodes_[index(from)].kind != NodeKind::max_pool || !needs_gradient(from) ||
      sole_reader(nodes_[index(from)]) != static_cast<int>(&node - nodes_.data()))
    return false;
  const Node& pool = nodes_[index(from)];
  Result& pooled = results_[index(from)];
  const LinearPoolBackwardData desc{{any(dy.desc.shape), any({node.output[0], node.input.numel()}), pooled.y.desc},
                                    {pooled.y.desc, pooled.x.desc, pool.window, pool.dropout}};
  if (result.x.where.offset != pooled.y.where.offset || !context_.fuses(desc)) return false;
  Steps& steps = plan_.backward_;
  auto op = make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const Value grad = as(steps, node.name + " backward_data", dy, tensors[0]);
  const Value weight = backward_weight(node, tensors[1]);
  const Value dx = new_value(tensors[3]);
  add(steps, node.name, "backward_data", std::move(op),
      {.dy = grad.where, .w = weight.where, .mask = pooled.saved.where, .dx = dx.where});
  pooled.unpooled = true;
  give(from, dx, true);
  return true;
}

bool PlanBuilder::backward_at_once(const Node& node, const Value& dy, const Result& result) {
  const int before = masked_input(node);
  if (before < 0 || result.x.where.offset != results_[index(before)].y.where.offset) return false;
  const Shape weights{node.output[0], node.input.numel()};
  const LinearReluBackward desc{{result.x.desc, dy.desc, any_full(weights), node.bias >= 0},
                                {dy.desc, any(weights), result.x.desc},
                                results_[index(before)].scale};
  if (!context_.fuses(desc)) return false;
  Steps& steps = plan_.backward_;
  auto op = make(desc);
  const std::vector<TensorDesc> tensors = op.tensors();
  const Value grad = as(steps, node.name + " backward", dy, tensors[1]);
  const Value weight = backward_weight(node, tensors[3]);
  const Value dw = gradient_target(node.weight, tensors[2]);
  Value db;
  if (node.bias >= 0) db = gradient_target(node.bias, channels_desc(node.output[0]));
  const Value dx = new_value(tensors[4]);
  add(steps, node.name, "backward", std::move(op),
      {.x = result.x.where, .dy = grad.where, .w = weight.where, .dw = dw.where, .db = db.where, .dx = dx.where});
  store_gradient(node.name + " weight", node.weight, dw);
  if (node.bias >= 0) store_gradient(node.name + " bias", node.bias, db);
  results_[index(before)].masked = true;
  give(node.inputs[0], dx, true);
  finished(node.weight, node.bias);
  return true;
}

}  // namespace dp::engine
