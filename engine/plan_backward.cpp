// The backward half of the plan builder.
#include "engine/plan_builder.h"

namespace dp::engine {

using namespace kernels;

PlanBuilder::Value PlanBuilder::backward_node(const Node& node, Value dy, const Saved& saved, bool needs_dx) {
  Steps& steps = plan_.backward_;
  dy = as(steps, node.name + " backward", dy, saved.y.desc);
  switch (node.kind) {
    case NodeKind::conv:
    case NodeKind::linear:
      if (node.relu)
        add(steps, node.name + " relu_backward", context_.make_op(ReluBackward{dy.desc}),
            {dy.where, saved.y.where, dy.where});
      return backward_weighted(node, dy, saved, needs_dx);
    case NodeKind::pool: {
      auto op = context_.make_op(MaxPool2dBackward{dy.desc, saved.x.desc, node.window, node.dropout});
      const Value dx = new_value(saved.x.desc);
      add(steps, node.name + " backward", std::move(op), {dy.where, saved.mask.where, dx.where});
      return dx;
    }
    case NodeKind::relu:
      add(steps, node.name + " backward", context_.make_op(ReluBackward{dy.desc}), {dy.where, saved.y.where, dy.where});
      return dy;
    case NodeKind::dropout:
      add(steps, node.name + " backward", context_.make_op(DropoutApply{dy.desc, *node.dropout}),
          {dy.where, dy.where, {Space::samples}, {Space::step_inputs}});
      return dy;
  }
  return dy;
}

PlanBuilder::Value PlanBuilder::backward_weighted(const Node& node, const Value& dy, const Saved& saved,
                                                  bool needs_dx) {
  Steps& steps = plan_.backward_;
  const bool conv = node.kind == NodeKind::conv;
  const TensorDesc x = saved.x.desc.type == context_.compute_type() ? saved.x.desc : any(saved.x.desc.shape);
  const TensorDesc w = any(conv ? Shape{node.output[0], node.input[0], node.window.kernel, node.window.kernel}
                                : Shape{node.output[0], node.input.numel()});
  const TensorDesc any_dy = any(dy.desc.shape);

  {
    auto op = context_.make_op(conv ? OpDesc(Conv2dBackwardWeights{x, dy.desc, w, node.window, node.bias >= 0})
                                    : OpDesc(LinearBackwardWeights{x, dy.desc, w, node.bias >= 0}));
    const TensorDesc wanted_x = op->tensors()[0], wanted_dy = op->tensors()[1], produced = op->tensors()[2];
    const Value from = as(steps, node.name + " backward_weights", saved.x, wanted_x);
    const Value grad = as(steps, node.name + " backward_weights", dy, wanted_dy);
    const Value dw = gradient_target(node.weight, produced);
    Value db;
    if (node.bias >= 0)
      db = gradient_target(node.bias, {Shape{node.output[0]}, context_.compute_type(),
                                       context_.plain_layout(Shape{node.output[0]}, context_.compute_type())});
    add(steps, node.name + " backward_weights", std::move(op), {from.where, grad.where, dw.where, db.where});
    store_gradient(node.name + " weight", node.weight, dw);
    if (node.bias >= 0) store_gradient(node.name + " bias", node.bias, db);
  }

  Value dx;
  if (needs_dx) {
    auto op = context_.make_op(conv ? OpDesc(Conv2dBackwardData{any_dy, w, x, node.window})
                                    : OpDesc(LinearBackwardData{any_dy, w, x}));
    const TensorDesc wanted_dy = op->tensors()[0], wanted_w = op->tensors()[1], produced = op->tensors()[2];
    const Value grad = as(steps, node.name + " backward_data", dy, wanted_dy);
    // Without a table only the forward decides how parameters lie, and nothing here will run.
    const Value weight = table_ == nullptr
                             ? Value{{Space::value, 0}, wanted_w}
                             : parameter(steps, node.name + " backward_data weight", node.weight, wanted_w);
    dx = new_value(produced);
    add(steps, node.name + " backward_data", std::move(op), {grad.where, weight.where, dx.where});
  }
  steps.back().ready_from = node.weight;
  return dx;
}

PlanBuilder::Value PlanBuilder::gradient_target(int entry, const TensorDesc& produced) {
  if (table_ == nullptr) return {{Space::gradient, 0}, produced};
  if (plan_.options_.accumulate || !(produced.layout == table_->entry(entry).layout)) return new_value(produced);
  return {{Space::gradient, static_cast<std::size_t>(table_->entry(entry).offset) * size_of(context_.compute_type())},
          produced};
}

void PlanBuilder::store_gradient(const std::string& name, int entry, const Value& gradient) {
  if (gradient.where.space == Space::gradient) return;
  Steps& steps = plan_.backward_;
  const ParameterEntry& e = table_->entry(entry);
  const Ref target{Space::gradient, static_cast<std::size_t>(e.offset) * size_of(context_.compute_type())};
  if (!plan_.options_.accumulate) {
    add(steps, name + " gradient reorder", context_.make_op(Reorder{gradient.desc, parameter_desc(entry)}),
        {gradient.where, target});
    ++plan_.reorders_;
    return;
  }
  const Value summand = as(steps, name + " gradient", gradient, parameter_desc(entry));
  add(steps, name + " accumulate", context_.make_op(Accumulate{e.count}), {summand.where, target});
}

}  // namespace dp::engine
