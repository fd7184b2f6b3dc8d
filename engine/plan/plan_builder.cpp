#include "engine/plan/plan_builder.h"

#include <algorithm>

#include "dp/error.h"

namespace dp::engine {

using namespace kernels;

void PlanBuilder::build(const Model& model) {
  const PlanOptions& options = plan_.options_;
  plan_.parameter_layouts_.resize(model.parameters().size());
  for (std::size_t i = 0; i < plan_.parameter_layouts_.size(); ++i)
    plan_.parameter_layouts_[i] = context_.plain_layout(model.parameters()[i].shape, context_.compute_type());
  nodes_ = fuse(model, options.dropout && options.training);
  const std::vector<Node>& nodes = nodes_;
  neighbours_ = norm_neighbours(nodes, options.norm == BatchNormMode::sync);

  const Shape input = model.input().prepended(options.batch);
  if (options.input) {
    input_ = new_value(*options.input);
    plan_.input_ = {input_.where, input_.desc};
  } else {
    input_ = {{Space::input, 0}, {input, DType::f32, context_.plain_layout(input, DType::f32)}};
  }
  results_.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Result& result = results_[i];
    result.needs_gradient = nodes[i].weight >= 0;
    for (const int from : nodes[i].inputs) result.needs_gradient |= needs_gradient(from);
    forward_node(nodes[i], result);
  }

  end_forward();
  if (options.training) {
    gradients_.resize(nodes.size());
    unfinished_.assign(model.parameters().size(), 1);
    begin_backward();
    for (std::size_t i = nodes.size(); i-- > 0;)
      if (results_[i].needs_gradient) backward_node(nodes[i], results_[i], std::move(gradients_[i]));
    end_backward();
    update_running();
  }
  finish();
}

void PlanBuilder::end_forward() {
  const Value& output = results_.back().y;
  if (!plan_.options_.last) {
    plan_.output_ = border(output, step_);  // valid until the first step of backward has run
    return;
  }
  TensorDesc plain = any_full(output.desc.shape);
  plain.layout = context_.plain_layout(plain.shape, plain.type);
  const Value logits = as(plan_.forward_, "logits", output, plain);
  plan_.logits_ = logits.where;
  cross_entropy(logits);
}

Border PlanBuilder::border(const Value& value, int last) {
  if (value.where.space == Space::activation) buffers_[value.where.offset].last = last;
  return {value.where, value.desc};
}

TensorDesc PlanBuilder::parameter_desc(int entry) const {
  const ParameterEntry& e = table_->entry(entry);
  return {e.shape, context_.compute_type(), e.layout};
}

TensorDesc PlanBuilder::computed(const TensorDesc& desc) const {
  const DType type = context_.activation_type();
  return desc.type == type ? desc : TensorDesc{desc.shape, type, context_.plain_layout(desc.shape, type)};
}

TensorDesc PlanBuilder::channels_desc(std::int64_t channels) const {
  return {Shape{channels}, context_.compute_type(), context_.plain_layout(Shape{channels}, context_.compute_type())};
}

Ref PlanBuilder::parameter_place(int entry) const {
  if (table_ == nullptr || entry < 0) return {};
  return {Space::value, static_cast<std::size_t>(table_->entry(entry).offset) * size_of(context_.compute_type())};
}

PlanBuilder::Value PlanBuilder::weights(int entry) const {
  const TensorDesc master = parameter_desc(entry);
  if (!mixed()) return {parameter_place(entry), master};
  const DType low = context_.activation_type();
  const std::size_t offset = static_cast<std::size_t>(table_->entry(entry).offset) * context_.element_bytes(low);
  return {{Space::low_value, offset}, {master.shape, low, context_.with_type(master, low)}};
}

PlanBuilder::Value PlanBuilder::new_doubles(std::int64_t count) {
  const Shape shape{count};
  return new_value({shape, DType::f64, {"doubles", static_cast<std::size_t>(count) * sizeof(double), nullptr}});
}

PlanBuilder::Value PlanBuilder::new_value(const TensorDesc& resolved) {
  buffers_.push_back({resolved.layout.bytes, step_, step_});
  return {{Space::activation, buffers_.size() - 1}, resolved};
}

void PlanBuilder::add(Steps& steps, const std::string& node, const std::string& part, OpDesc desc,
                      std::unique_ptr<Op> op, std::span<const Ref> args) {
  PlanStep step;
  step.name = part.empty() ? node : node + " " + part;
  step.node = node;
  plan_.workspace_bytes_ = std::max(plan_.workspace_bytes_, op->workspace_bytes());
  step.desc = std::move(desc);
  step.op = std::move(op);
  for (const Ref& ref : args) {
    if (ref.space == Space::activation) {
      Lifetime& life = buffers_[ref.offset];
      life.first = std::min(life.first, step_);
      life.last = std::max(life.last, step_);
    }
    step.args[static_cast<std::size_t>(step.arg_count++)] = ref;
  }
  ++step_;
  steps.push_back(std::move(step));
}

PlanBuilder::Value PlanBuilder::as(Steps& steps, const std::string& reader, const Value& value,
                                   const TensorDesc& wanted) {
  if (value.desc.layout == wanted.layout && value.desc.type == wanted.type) return value;
  if (value.desc.shape != wanted.shape) {  // (C,H,W) and flattened tensors have equal memory if both are row-major
    const DType type = value.desc.type;
    Value plain = as(steps, reader, value, {value.desc.shape, type, context_.plain_layout(value.desc.shape, type)});
    plain.desc = {wanted.shape, type, context_.plain_layout(wanted.shape, type)};
    return as(steps, reader, plain, wanted);
  }
  const Value result = new_value(wanted);
  add(steps, reader, "reorder", make(Reorder{value.desc, wanted}), {.src = value.where, .dst = result.where});
  ++plan_.reorders_;
  return result;
}

PlanBuilder::Value PlanBuilder::parameter(Steps& steps, const std::string& reader, int entry,
                                          const TensorDesc& wanted) {
  if (table_ == nullptr) {  // this plan chooses the layout
    plan_.parameter_layouts_[static_cast<std::size_t>(entry)] = context_.with_type(wanted, context_.compute_type());
    return {{Space::value, 0}, wanted};
  }
  return as(steps, reader, weights(entry), wanted);
}

void PlanBuilder::forward_node(const Node& node, Result& result) {
  if (result.joined) return;
  Steps& steps = plan_.forward_;
  const Value& x = result_of(node.inputs[0]);
  switch (node.kind) {
    case NodeKind::conv:
    case NodeKind::linear: return forward_weighted(node, x, result);
    case NodeKind::norm: return forward_norm(node, x, result);
    case NodeKind::max_pool: return forward_max_pool(node, x, result);
    case NodeKind::avg_pool: {
      auto op = make(AvgPool2dForward{computed(x.desc), batched(node.output), node.window, node.global});
      result.x = as(steps, node.name, x, op.tensors()[0]);
      result.y = new_value(op.tensors()[1]);
      add(steps, node.name, "", std::move(op), {.x = result.x.where, .y = result.y.where});
      return;
    }
    case NodeKind::add: {
      result.x = as(steps, node.name, x, computed(x.desc));
      const Value b = as(steps, node.name, result_of(node.inputs[1]), result.x.desc);
      result.y = new_value(result.x.desc);
      add(steps, node.name, "", make(AddForward{result.x.desc, node.relu}),
          {.a = result.x.where, .b = b.where, .y = result.y.where});
      return;
    }
    case NodeKind::relu:
      result.x = as(steps, node.name, x, computed(x.desc));
      result.y = new_value(result.x.desc);
      add(steps, node.name, "", make(ReluForward{result.x.desc}), {.x = result.x.where, .y = result.y.where});
      return;
    case NodeKind::dropout:
      result.x = as(steps, node.name, x, computed(x.desc));
      result.y = new_value(result.x.desc);
      add(steps, node.name, "", make(DropoutApply{result.x.desc, *node.dropout}),
          {.x = result.x.where, .y = result.y.where, .samples = {Space::samples}, .inputs = {Space::step_inputs}});
  }
}

void PlanBuilder::forward_weighted(const Node& node, const Value& x, Result& result) {
  Steps& steps = plan_.forward_;
  const bool conv = node.kind == NodeKind::conv;
  if (const Node* const norm = conv ? folded_norm(node) : nullptr) return forward_folded(node, *norm, x, result);
  if (conv ? forward_fused(node, x, result) || forward_with_pool(node, x, result)
           : forward_with_dropout(node, x, result) || forward_with_loss(node, x, result))
    return;
  TensorDesc in = x.desc.type == context_.activation_type() ? x.desc : any(x.desc.shape);
  const std::int64_t inner = node.input.numel();
  const TensorDesc w = any(conv ? Shape{node.output[0], node.input[0], node.window.kernel, node.window.kernel}
                                : Shape{node.output[0], inner});
  const auto add_layer = [&](const auto& desc) {
    auto op = make(desc);
    const TensorDesc wanted_x = op.tensors()[0], wanted_w = op.tensors()[1], out = op.tensors()[2];
    const Value from = as(steps, node.name, x, wanted_x);
    const Value weight = parameter(plan_.forward_, node.name + " weight", node.weight, wanted_w);
    result.x = mixed() && x.desc.type != from.desc.type ? from : x;  // mixed precision: cast the images once
    result.y = new_value(out);
    add(steps, node.name, "", std::move(op),
        {.x = from.where, .w = weight.where, .b = parameter_place(node.bias), .y = result.y.where});
  };
  if (conv)
    add_layer(Conv2dForward{in, w, batched(node.output), node.window, node.bias >= 0, node.relu});
  else
    add_layer(LinearForward{in, w, batched(node.output), node.bias >= 0, node.relu});
}

void PlanBuilder::forward_max_pool(const Node& node, const Value& x, Result& result) {
  Steps& steps = plan_.forward_;
  const bool training = plan_.options_.training;
  auto op =
      make(MaxPool2dForward{computed(x.desc), batched(node.output), node.window, node.relu, training, node.dropout});
  result.x = as(steps, node.name, x, op.tensors()[0]);
  result.y = new_value(op.tensors()[1]);
  if (training) result.saved = new_mask(result.y);
  add(steps, node.name, "", std::move(op),
      {.x = result.x.where,
       .y = result.y.where,
       .mask = result.saved.where,
       .samples = {node.dropout ? Space::samples : Space::none},
       .inputs = {node.dropout ? Space::step_inputs : Space::none}});
}

PlanBuilder::Value PlanBuilder::new_mask(const Value& pooled) {
  const std::size_t bytes = pooled.desc.layout.bytes / context_.element_bytes(pooled.desc.type);
  return new_value({pooled.desc.shape, DType::u8, {"mask of " + pooled.desc.layout.name, bytes, nullptr}});
}

void PlanBuilder::cross_entropy(const Value& logits) {
  if (!plan_.loss_.empty()) return;  // forward_with_loss() has added it
  const std::int64_t batch = plan_.options_.batch;
  Ref grad{};
  if (plan_.options_.training) grad = new_value(logits.desc).where;
  const bool scaled = plan_.options_.training && plan_.options_.scales_loss;
  add(plan_.loss_, "loss", "", make(SoftmaxCrossEntropy{batch, logits.desc.shape.numel() / batch, scaled}),
      {.logits = logits.where,
       .labels = {Space::labels},
       .inputs = {Space::step_inputs},
       .dlogits = grad,
       .results = {Space::step_results},
       .scaler = {scaled ? Space::loss_scaler : Space::none}});
  plan_.logits_grad_ = grad;
}

void PlanBuilder::finish() {
  plan_.arena_bytes_ = place(buffers_);
  const auto resolve = [&](Ref& ref) {
    if (ref.space == Space::activation) ref.offset = buffers_[ref.offset].offset;
  };
  for (Steps* steps : {&plan_.fold_, &plan_.forward_, &plan_.loss_, &plan_.backward_, &plan_.weights_, &plan_.running_})
    for (PlanStep& step : *steps)
      for (Ref& ref : step.args) resolve(ref);
  for (Ref* ref : {&plan_.logits_, &plan_.logits_grad_, &plan_.input_.where, &plan_.input_grad_.where,
                   &plan_.output_.where, &plan_.output_grad_.where})
    resolve(*ref);
}

}  // namespace dp::engine
