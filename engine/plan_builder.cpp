#include "engine/plan_builder.h"

#include <algorithm>

#include "dp/error.h"

namespace dp::engine {

using namespace kernels;

void PlanBuilder::build(const Model& model) {
  const PlanOptions& options = plan_.options_;
  plan_.parameter_layouts_.resize(model.parameters().size());
  for (std::size_t i = 0; i < plan_.parameter_layouts_.size(); ++i)
    plan_.parameter_layouts_[i] = context_.plain_layout(model.parameters()[i].shape, context_.compute_type());
  const std::vector<Node> nodes = fuse(model, options.dropout && options.training);

  const Shape input = model.input().prepended(options.batch);
  Value value{{Space::input, 0}, {input, DType::f32, context_.plain_layout(input, DType::f32)}};
  std::vector<Saved> saved(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) value = forward_node(nodes[i], value, saved[i]);

  TensorDesc plain = value.desc;
  plain.layout = context_.plain_layout(plain.shape, plain.type);
  const Value logits = as(plan_.forward_, "logits", value, plain);
  plan_.logits_ = logits.where;
  cross_entropy(logits);

  if (options.training) {
    std::size_t first_weighted = 0;
    while (first_weighted < nodes.size() && nodes[first_weighted].weight < 0) ++first_weighted;
    Value dy{plan_.logits_grad_, logits.desc};
    for (std::size_t i = nodes.size(); i-- > first_weighted;)
      dy = backward_node(nodes[i], dy, saved[i], i > first_weighted);
  }
  finish();
}

TensorDesc PlanBuilder::parameter_desc(int entry) const {
  const ParameterEntry& e = table_->entry(entry);
  return {e.shape, context_.compute_type(), e.layout};
}

TensorDesc PlanBuilder::computed(const TensorDesc& desc) const {
  if (desc.type == context_.compute_type()) return desc;
  return {desc.shape, context_.compute_type(), context_.plain_layout(desc.shape, context_.compute_type())};
}

PlanBuilder::Value PlanBuilder::new_value(const TensorDesc& resolved) {
  buffers_.push_back({resolved.layout.bytes, step_, step_});
  return {{Space::activation, buffers_.size() - 1}, resolved};
}

PlanStep& PlanBuilder::add(Steps& steps, const std::string& name, std::unique_ptr<Op> op,
                           std::initializer_list<Ref> args) {
  PlanStep step;
  step.name = name;
  plan_.workspace_bytes_ = std::max(plan_.workspace_bytes_, op->workspace_bytes());
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
  return steps.back();
}

PlanBuilder::Value PlanBuilder::as(Steps& steps, const std::string& reader, const Value& value,
                                   const TensorDesc& wanted) {
  if (value.desc.layout == wanted.layout && value.desc.type == wanted.type) return value;
  TensorDesc target = wanted;
  target.shape = value.desc.shape;
  const Value result = new_value(target);
  add(steps, reader + " reorder", context_.make_op(Reorder{value.desc, target}), {value.where, result.where});
  ++plan_.reorders_;
  return result;
}

PlanBuilder::Value PlanBuilder::parameter(Steps& steps, const std::string& reader, int entry,
                                          const TensorDesc& wanted) {
  if (table_ == nullptr) {  // this plan decides
    plan_.parameter_layouts_[static_cast<std::size_t>(entry)] = wanted.layout;
    return {{Space::value, 0}, wanted};
  }
  const std::size_t offset = static_cast<std::size_t>(table_->entry(entry).offset) * size_of(context_.compute_type());
  return as(steps, reader, {{Space::value, offset}, parameter_desc(entry)}, wanted);
}

PlanBuilder::Value PlanBuilder::forward_node(const Node& node, const Value& x, Saved& saved) {
  Value y;
  Steps& steps = plan_.forward_;
  saved.x = x;
  switch (node.kind) {
    case NodeKind::conv:
    case NodeKind::linear: y = forward_weighted(node, x); break;
    case NodeKind::pool: y = forward_pool(node, x, saved); break;
    case NodeKind::relu: {
      const Value in = as(steps, node.name, x, computed(x.desc));
      y = new_value(in.desc);
      add(steps, node.name, context_.make_op(ReluForward{in.desc}), {in.where, y.where});
      break;
    }
    case NodeKind::dropout: {
      const Value in = as(steps, node.name, x, computed(x.desc));
      y = new_value(in.desc);
      add(steps, node.name, context_.make_op(DropoutApply{in.desc, *node.dropout}),
          {in.where, y.where, {Space::samples}, {Space::step_inputs}});
      break;
    }
  }
  saved.y = y;
  return y;
}

PlanBuilder::Value PlanBuilder::forward_weighted(const Node& node, const Value& x) {
  Steps& steps = plan_.forward_;
  const bool conv = node.kind == NodeKind::conv;
  TensorDesc in = x.desc.type == context_.compute_type() ? x.desc : any(x.desc.shape);
  const std::int64_t inner = node.input.numel();
  const TensorDesc w = any(conv ? Shape{node.output[0], node.input[0], node.window.kernel, node.window.kernel}
                                : Shape{node.output[0], inner});
  const auto make = [&](const TensorDesc& from) {
    const OpDesc desc =
        conv ? OpDesc(Conv2dForward{from, w, batched(node.output), node.window, node.bias >= 0, node.relu})
             : OpDesc(LinearForward{from, w, batched(node.output), node.bias >= 0, node.relu});
    return context_.make_op(desc);
  };
  auto op = make(in);
  const TensorDesc wanted_x = op->tensors()[0], wanted_w = op->tensors()[1], out = op->tensors()[2];
  const Value from = as(steps, node.name, x, wanted_x);
  const Value weight = parameter(steps, node.name + " weight", node.weight, wanted_w);
  Ref bias{};
  if (node.bias >= 0 && table_ != nullptr)
    bias = {Space::value, static_cast<std::size_t>(table_->entry(node.bias).offset) * size_of(context_.compute_type())};
  const Value y = new_value(out);
  const bool reordered = weight.where.space == Space::activation;
  add(steps, node.name, std::move(op), {from.where, weight.where, bias, y.where});
  steps.back().reads_entry = node.weight;
  if (reordered) steps[steps.size() - 2].reads_entry = node.weight;
  return y;
}

PlanBuilder::Value PlanBuilder::forward_pool(const Node& node, const Value& x, Saved& saved) {
  Steps& steps = plan_.forward_;
  const bool training = plan_.options_.training;
  auto op = context_.make_op(
      MaxPool2dForward{computed(x.desc), batched(node.output), node.window, node.relu, training, node.dropout});
  const Value from = as(steps, node.name, x, op->tensors()[0]);
  const Value y = new_value(op->tensors()[1]);
  if (training) {
    const std::size_t bytes = y.desc.layout.bytes / size_of(context_.compute_type());
    saved.mask = new_value({y.desc.shape, DType::u8, {"mask of " + y.desc.layout.name, bytes, nullptr}});
  }
  const Ref samples{node.dropout ? Space::samples : Space::none},
      inputs{node.dropout ? Space::step_inputs : Space::none};
  add(steps, node.name, std::move(op), {from.where, y.where, saved.mask.where, samples, inputs});
  saved.x = from;
  return y;
}

void PlanBuilder::cross_entropy(const Value& logits) {
  const std::int64_t batch = plan_.options_.batch;
  Ref grad{};
  if (plan_.options_.training) grad = new_value(logits.desc).where;
  add(plan_.loss_, "loss", context_.make_op(SoftmaxCrossEntropy{batch, logits.desc.shape.numel() / batch}),
      {logits.where, {Space::labels}, {Space::step_inputs}, grad, {Space::step_results}});
  plan_.logits_grad_ = grad;
}

void PlanBuilder::finish() {
  plan_.arena_bytes_ = place(buffers_);
  const auto resolve = [&](Ref& ref) {
    if (ref.space == Space::activation) ref.offset = buffers_[ref.offset].offset;
  };
  for (Steps* steps : {&plan_.forward_, &plan_.loss_, &plan_.backward_})
    for (PlanStep& step : *steps)
      for (Ref& ref : step.args) resolve(ref);
  resolve(plan_.logits_);
  resolve(plan_.logits_grad_);
}

}  // namespace dp::engine
