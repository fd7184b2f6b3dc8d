#include "engine/plan/plan_gradients.h"

#include <limits>

namespace dp::engine {

using namespace kernels;

void PlanGradients::begin(std::size_t parameters) {
  of_nodes_.resize(plan_.nodes.size());
  unfinished_.assign(parameters, 1);
  steps_ = &plan_.backward;
  const int last = static_cast<int>(plan_.results.size()) - 1;
  const NodeResult& output = plan_.results.back();
  if (plan_.options.last) {
    TensorDesc plain = plan_.any_full(output.y.desc.shape);
    plain.layout = plan_.context.plain_layout(plain.shape, plain.type);
    return give(last, {plan_.logits_grad, plain}, true);
  }
  const PlanValue gradient = plan_.new_value(output.y.desc);
  plan_.output_grad = {gradient.where, gradient.desc};
  give(last, gradient, true);
}

void PlanGradients::give(int node, const PlanValue& gradient, bool owned) {
  if (plan_.needs_gradient(node)) (node < 0 ? of_input_ : of_nodes_[index(node)]).push_back({gradient, owned});
}

NodeGradient PlanGradients::sum(const Node& node, const NodeResult& result, std::vector<NodeGradient> gradients) {
  PlanSteps& steps = plan_.backward;
  const std::string reader = node.name + " backward";
  NodeGradient total;
  for (NodeGradient& next : gradients) {
    const PlanValue value = plan_.as(steps, reader, next.value, result.y.desc);
    const bool owned = next.owned || value.where.offset != next.value.where.offset;
    if (&next == &gradients.front()) {
      total = {value, owned};
      continue;
    }
    NodeGradient a = total, b{value, owned};
    if (!a.owned) std::swap(a, b);
    const PlanValue to = in_place_or_new(a);
    plan_.add(steps, reader, "sum", plan_.make(AddForward{result.y.desc, false}),
              {.a = a.value.where, .b = b.value.where, .y = to.where});
    total = {to, true};
  }
  return total;
}

PlanValue PlanGradients::in_place_or_new(const NodeGradient& from) {
  return from.owned ? from.value : plan_.new_value(from.value.desc);
}

PlanValue PlanGradients::weight_of(const Node& node, const TensorDesc& wanted) {
  // Without a table this plan only determines the parameter layouts, which the forward ops choose; it never runs.
  if (plan_.table == nullptr) return {{Space::value, 0}, wanted};
  return plan_.parameter(plan_.backward, node.name + " backward_data weight", node.weight, wanted);
}

void PlanGradients::finished(int weight, int bias) {
  unfinished_[index(weight)] = 0;
  if (bias >= 0) unfinished_[index(bias)] = 0;
  int from = static_cast<int>(unfinished_.size());
  while (from > 0 && !unfinished_[index(from - 1)]) --from;
  if (from < static_cast<int>(unfinished_.size())) steps_->back().ready_from = from;
}

PlanValue PlanGradients::target(int entry, const TensorDesc& produced) {
  if (plan_.table == nullptr) return {{Space::gradient, 0}, produced};
  if (plan_.options.accumulate || !(produced.layout == plan_.table->entry(entry).layout))
    return plan_.new_value(produced);
  return {{Space::gradient, plan_.parameter_place(entry).offset}, produced};
}

void PlanGradients::store(const std::string& name, int entry, const PlanValue& gradient) {
  if (gradient.where.space == Space::gradient) return;
  PlanSteps& steps = *steps_;
  const ParameterEntry& e = plan_.table->entry(entry);
  const Ref target{Space::gradient, plan_.parameter_place(entry).offset};
  if (!plan_.options.accumulate) {
    plan_.add(steps, name + " gradient", "reorder", plan_.make(Reorder{gradient.desc, plan_.parameter_desc(entry)}),
              {.src = gradient.where, .dst = target});
    ++plan_.reorders;
    return;
  }
  const PlanValue summand = plan_.as(steps, name + " gradient", gradient, plan_.parameter_desc(entry));
  plan_.add(steps, name, "accumulate", plan_.make(Accumulate{e.count}), {.x = summand.where, .y = target});
}

void PlanGradients::end() {
  if (plan_.options.input) {
    Node input;
    input.name = "input";
    NodeResult result;
    result.y = plan_.images;
    constexpr int kEnd = std::numeric_limits<int>::max();
    plan_.input_grad = plan_.border(sum(input, result, std::move(of_input_)).value, kEnd);
  }
  steps_ = &plan_.weights;
  for (const auto& add_gradients : later_) add_gradients();
}

}  // namespace dp::engine
