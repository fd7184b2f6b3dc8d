// The backward part of the plan builder.
#include <limits>

#include "engine/plan/plan_builder.h"

namespace dp::engine {

using namespace kernels;

void PlanBuilder::give(int node, const Value& gradient, bool owned) {
  if (needs_gradient(node)) (node < 0 ? input_gradients_ : gradients_[index(node)]).push_back({gradient, owned});
}

void PlanBuilder::begin_backward() {
  gradient_steps_ = &plan_.backward_;
  const int last = static_cast<int>(results_.size()) - 1;
  const Result& output = results_.back();
  if (plan_.options_.last) {
    TensorDesc plain = any_full(output.y.desc.shape);
    plain.layout = context_.plain_layout(plain.shape, plain.type);
    return give(last, {plan_.logits_grad_, plain}, true);
  }
  const Value gradient = new_value(output.y.desc);
  plan_.output_grad_ = {gradient.where, gradient.desc};
  give(last, gradient, true);
}

void PlanBuilder::end_backward() {
  if (plan_.options_.input) {
    Node input;
    input.name = "input";
    Result result;
    result.y = input_;
    constexpr int kEnd = std::numeric_limits<int>::max();
    plan_.input_grad_ = border(sum(input, result, std::move(input_gradients_)).value, kEnd);
  }
  gradient_steps_ = &plan_.weights_;
  for (const auto& add_gradients : later_) add_gradients();
}

void PlanBuilder::finished(int weight, int bias) {
  unfinished_[index(weight)] = 0;
  if (bias >= 0) unfinished_[index(bias)] = 0;
  int from = static_cast<int>(unfinished_.size());
  while (from > 0 && !unfinished_[index(from - 1)]) --from;
  if (from < static_cast<int>(unfinished_.size())) gradient_steps_->back().ready_from = from;
}

PlanBuilder::Gradient PlanBuilder::sum(const Node& node, const Result& result, std::vector<Gradient> gradients) {
  Steps& steps = plan_.backward_;
  const std::string reader = node.name + " backward";
  Gradient total;
  for (Gradient& next : gradients) {
    const Value value = as(steps, reader, next.value, result.y.desc);
    const bool owned = next.owned || value.where.offset != next.value.where.offset;
    if (&next == &gradients.front()) {
      total = {value, owned};
      continue;
    }
    Gradient a = total, b{value, owned};
    if (!a.owned) std::swap(a, b);
    const Value to = in_place_or_new(a);
    add(steps, reader, "sum", make(AddForward{result.y.desc, false}),
        {.a = a.value.where, .b = b.value.where, .y = to.where});
    total = {to, true};
  }
  return total;
}

PlanBuilder::Value PlanBuilder::in_place_or_new(const Gradient& from) {
  return from.owned ? from.value : new_value(from.value.desc);
}

void PlanBuilder::backward_node(const Node& node, const Result& result, std::vector<Gradient> gradients) {
  if (node.kind == NodeKind::norm) return backward_norm(node, result, std::move(gradients));
  if (result.unpooled) return give(node.inputs[0], gradients.front().value, true);
  Steps& steps = plan_.backward_;
  Gradient dy = sum(node, result, std::move(gradients));
  const Value& from = dy.value;
  const bool folded_relu = node.relu && node.kind != NodeKind::max_pool && !result.masked;
  if (folded_relu || node.kind == NodeKind::relu) {
    const Value to = in_place_or_new(dy);
    add(steps, node.name, node.kind == NodeKind::relu ? "backward" : "relu_backward",
        make(ReluBackward{from.desc, result.scale}), {.dy = from.where, .y = result.y.where, .dx = to.where});
    dy = {to, true};
  }
  switch (node.kind) {
    case NodeKind::conv:
    case NodeKind::linear: return backward_weighted(node, dy.value, result);
    case NodeKind::max_pool: {
      auto op = make(MaxPool2dBackward{from.desc, result.x.desc, node.window, node.dropout});
      const Value dx = new_value(result.x.desc);
      add(steps, node.name, "backward", std::move(op), {.dy = from.where, .mask = result.saved.where, .dx = dx.where});
      return give(node.inputs[0], dx, true);
    }
    case NodeKind::avg_pool: {
      auto op = make(AvgPool2dBackward{from.desc, result.x.desc, node.window, node.global});
      const Value dx = new_value(result.x.desc);
      add(steps, node.name, "backward", std::move(op), {.dy = from.where, .dx = dx.where});
      return give(node.inputs[0], dx, true);
    }
    case NodeKind::add: {
      const bool both = needs_gradient(node.inputs[0]) && needs_gradient(node.inputs[1]);
      give(node.inputs[0], dy.value, dy.owned && !both);
      return give(node.inputs[1], dy.value, dy.owned && !both);
    }
    case NodeKind::dropout: {
      if (result.joined) return give(node.inputs[0], dy.value, dy.owned);
      const Value to = in_place_or_new(dy);
      add(steps, node.name, "backward", make(DropoutApply{from.desc, *node.dropout}),
          {.x = from.where, .y = to.where, .samples = {Space::samples}, .inputs = {Space::step_inputs}});
      return give(node.inputs[0], to, true);
    }
    case NodeKind::norm:  // handled above
    case NodeKind::relu: return give(node.inputs[0], dy.value, dy.owned);
  }
}

void PlanBuilder::backward_weighted(const Node& node, const Value& dy, const Result& result) {
  const bool conv = node.kind == NodeKind::conv, splits = plan_.options_.split_backward;
  if (!conv && !splits && backward_at_once(node, dy, result)) return;
  if (splits)
    later_.emplace_back([this, &node, dy, &result] {
      weight_gradients(node, dy, result);
      finished(node.weight, node.bias);
    });
  else
    weight_gradients(node, dy, result);

  if (conv && sums_gradient(node)) return backward_data_and_sums(node, dy);
  const bool fused = conv ? backward_with_mask(node, dy, result) : backward_with_pool(node, dy, result);
  const auto add_data_gradient = [&](const auto& desc) {
    auto op = make(desc);
    const TensorDesc wanted_dy = op.tensors()[0], wanted_w = op.tensors()[1], produced = op.tensors()[2];
    const Value grad = as(plan_.backward_, node.name + " backward_data", dy, wanted_dy);
    const Value weight = backward_weight(node, wanted_w);
    const Value dx = new_value(produced);
    add(plan_.backward_, node.name, "backward_data", std::move(op),
        {.dy = grad.where, .w = weight.where, .dx = dx.where});
    give(node.inputs[0], dx, true);
  };
  const TensorDesc x = read_by(result), w = any(weight_shape(node)), any_dy = any(dy.desc.shape);
  if (!fused && needs_gradient(node.inputs[0])) {
    if (conv)
      add_data_gradient(Conv2dBackwardData{any_dy, w, x, node.window});
    else
      add_data_gradient(LinearBackwardData{any_dy, w, x});
  }
  if (!splits) finished(node.weight, node.bias);
}

Shape PlanBuilder::weight_shape(const Node& node) {
  return node.kind == NodeKind::conv ? Shape{node.output[0], node.input[0], node.window.kernel, node.window.kernel}
                                     : Shape{node.output[0], node.input.numel()};
}

TensorDesc PlanBuilder::read_by(const Result& result) const {
  return result.x.desc.type == context_.activation_type() ? result.x.desc : any(result.x.desc.shape);
}

void PlanBuilder::weight_gradients(const Node& node, const Value& dy, const Result& result) {
  Steps& steps = *gradient_steps_;
  const bool conv = node.kind == NodeKind::conv;
  const TensorDesc x = read_by(result), full_w = any_full(weight_shape(node));
  const Node* const norm = conv ? deferred_norm(node) : nullptr;
  const auto add_gradients = [&]<typename D>(const D& desc) {
    auto op = make(desc);
    const TensorDesc wanted_x = op.tensors()[0], wanted_dy = op.tensors()[1], produced = op.tensors()[2];
    const Value from = as(steps, node.name + " backward_weights", result.x, wanted_x);
    const Value grad = as(steps, node.name + " backward_weights", dy, wanted_dy);
    const Value dw = gradient_target(node.weight, produced);
    Value db;
    if (node.bias >= 0) db = gradient_target(node.bias, channels_desc(node.output[0]));
    if constexpr (std::is_same_v<D, NormConv2dBackwardWeights>)
      add(steps, node.name, "backward_weights", std::move(op),
          {.x = from.where,
           .stats = results_[index(node.inputs[0])].saved.where,
           .weight = parameter_place(norm->weight),
           .bias = parameter_place(norm->bias),
           .dy = grad.where,
           .dw = dw.where});
    else
      add(steps, node.name, "backward_weights", std::move(op),
          {.x = from.where, .dy = grad.where, .dw = dw.where, .db = db.where});
    store_gradient(node.name + " weight", node.weight, dw);
    if (node.bias >= 0) store_gradient(node.name + " bias", node.bias, db);
  };
  if (norm != nullptr)
    add_gradients(fused_backward_weights(node, x, dy.desc));
  else if (conv)
    add_gradients(Conv2dBackwardWeights{x, dy.desc, full_w, node.window, node.bias >= 0});
  else
    add_gradients(LinearBackwardWeights{x, dy.desc, full_w, node.bias >= 0});
}

PlanBuilder::Value PlanBuilder::gradient_target(int entry, const TensorDesc& produced) {
  if (table_ == nullptr) return {{Space::gradient, 0}, produced};
  if (plan_.options_.accumulate || !(produced.layout == table_->entry(entry).layout)) return new_value(produced);
  return {{Space::gradient, parameter_place(entry).offset}, produced};
}

void PlanBuilder::store_gradient(const std::string& name, int entry, const Value& gradient) {
  if (gradient.where.space == Space::gradient) return;
  Steps& steps = *gradient_steps_;
  const ParameterEntry& e = table_->entry(entry);
  const Ref target{Space::gradient, parameter_place(entry).offset};
  if (!plan_.options_.accumulate) {
    add(steps, name + " gradient", "reorder", make(Reorder{gradient.desc, parameter_desc(entry)}),
        {.src = gradient.where, .dst = target});
    ++plan_.reorders_;
    return;
  }
  const Value summand = as(steps, name + " gradient", gradient, parameter_desc(entry));
  add(steps, name, "accumulate", make(Accumulate{e.count}), {.x = summand.where, .y = target});
}

}  // namespace dp::engine
