#include "engine/layers/planner.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace dp::engine {

using namespace kernels;

std::size_t place(std::vector<Lifetime>& buffers) {
  constexpr std::size_t kAlign = 64;
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::size_t total = 0;
  std::vector<const Lifetime*> placed;  // sorted by offset
  for (const std::size_t index : order) {
    Lifetime& buffer = buffers[index];
    const std::size_t bytes = (buffer.bytes + kAlign - 1) / kAlign * kAlign;
    std::size_t offset = 0;
    for (const Lifetime* other : placed) {
      if (other->last < buffer.first || buffer.last < other->first) continue;
      if (offset + bytes <= other->offset) break;
      offset = std::max(offset, (other->offset + other->bytes + kAlign - 1) / kAlign * kAlign);
    }
    buffer.offset = offset;
    total = std::max(total, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer,
                                   [](const Lifetime* a, const Lifetime* b) { return a->offset < b->offset; }),
                  &buffer);
  }
  return total;
}

const Node* PlanDraft::folded_norm(const Node& conv) const {
  const int norm = neighbours_of(conv).folds;
  return options.folds_norms && table != nullptr && norm >= 0 ? &nodes[index(norm)] : nullptr;
}

int PlanDraft::sole_reader(const Node& node) const {
  const int own = number_of(node);
  int reader = -1;
  for (std::size_t i = index(own) + 1; i < nodes.size(); ++i)
    for (const int from : nodes[i].inputs) {
      if (from != own) continue;
      if (reader >= 0) return -1;
      reader = static_cast<int>(i);
    }
  return reader;
}

Border PlanDraft::border(const PlanValue& value, int last) {
  if (value.where.space == Space::activation) buffers[value.where.offset].last = last;
  return {value.where, value.desc};
}

TensorDesc PlanDraft::parameter_desc(int entry) const {
  const ParameterEntry& e = table->entry(entry);
  return {e.stored, context.compute_type(), e.layout};
}

TensorDesc PlanDraft::computed(const TensorDesc& desc) const {
  const DType type = context.activation_type();
  return desc.type == type ? desc : TensorDesc{desc.shape, type, context.plain_layout(desc.shape, type)};
}

TensorDesc PlanDraft::channels_desc(std::int64_t channels) const {
  return {Shape{channels}, context.compute_type(), context.plain_layout(Shape{channels}, context.compute_type())};
}

Ref PlanDraft::parameter_place(int entry) const {
  if (table == nullptr || entry < 0) return {};
  return {Space::value, static_cast<std::size_t>(table->entry(entry).offset) * size_of(context.compute_type())};
}

PlanValue PlanDraft::layer_weights(int entry) const {
  const TensorDesc master = parameter_desc(entry);
  if (!mixed()) return {parameter_place(entry), master};
  const DType low = context.activation_type();
  const std::size_t offset = static_cast<std::size_t>(table->entry(entry).offset) * context.element_bytes(low);
  return {{Space::low_value, offset}, {master.shape, low, context.with_type(master, low)}};
}

PlanValue PlanDraft::new_doubles(std::int64_t count) {
  const Shape shape{count};
  return new_value({shape, DType::f64, {"doubles", static_cast<std::size_t>(count) * sizeof(double), nullptr}});
}

PlanValue PlanDraft::new_value(const TensorDesc& resolved) {
  if (resolved.layout.any()) throw std::logic_error("memory for a tensor whose layout no op has chosen");
  buffers.push_back({resolved.layout.bytes, steps_so_far, steps_so_far});
  return {{Space::activation, buffers.size() - 1}, resolved};
}

PlanValue PlanDraft::new_mask(const PlanValue& pooled) {
  const std::size_t bytes = pooled.desc.layout.bytes / context.element_bytes(pooled.desc.type);
  return new_value({pooled.desc.shape, DType::u8, {"mask of " + pooled.desc.layout.name, bytes, nullptr}});
}

void PlanDraft::add(PlanSteps& steps, const std::string& node, const std::string& part, OpDesc desc,
                    std::unique_ptr<Op> op, std::span<const Ref> args) {
  PlanStep step;
  step.name = part.empty() ? node : node + " " + part;
  step.node = node;
  workspace_bytes = std::max(workspace_bytes, op->workspace_bytes());
  step.desc = std::move(desc);
  step.op = std::move(op);
  for (const Ref& ref : args) {
    if (ref.space == Space::activation) {
      Lifetime& life = buffers[ref.offset];
      life.first = std::min(life.first, steps_so_far);
      life.last = std::max(life.last, steps_so_far);
    }
    step.args[static_cast<std::size_t>(step.arg_count++)] = ref;
  }
  ++steps_so_far;
  steps.push_back(std::move(step));
}

PlanValue PlanDraft::as(PlanSteps& steps, const std::string& reader, const PlanValue& value, const TensorDesc& wanted) {
  if (value.desc.layout == wanted.layout && value.desc.type == wanted.type) return value;
  if (value.desc.shape != wanted.shape) {  // (C,H,W) and flattened tensors have equal memory if both are row-major
    const DType type = value.desc.type;
    PlanValue plain = as(steps, reader, value, {value.desc.shape, type, context.plain_layout(value.desc.shape, type)});
    plain.desc = {wanted.shape, type, context.plain_layout(wanted.shape, type)};
    return as(steps, reader, plain, wanted);
  }
  const PlanValue result = new_value(wanted);
  add(steps, reader, "reorder", make(Reorder{value.desc, wanted}), {.src = value.where, .dst = result.where});
  ++reorders;
  return result;
}

PlanValue PlanDraft::parameter(PlanSteps& steps, const std::string& reader, int entry, const TensorDesc& wanted) {
  if (table == nullptr) {  // this plan chooses the layout
    parameter_layouts[static_cast<std::size_t>(entry)] = context.with_type(wanted, context.compute_type());
    return {{Space::value, 0}, wanted};
  }
  const PlanValue kept = layer_weights(entry);
  const bool equal = kept.desc.layout == wanted.layout && kept.desc.type == wanted.type;
  if (options.training || equal || kept.desc.shape != wanted.shape) return as(steps, reader, kept, wanted);
  const PlanValue copy = new_folded(*this, wanted);
  add(fold, reader, "reorder", make(Reorder{kept.desc, wanted}), {.src = kept.where, .dst = copy.where});
  return copy;
}

PlanValue new_folded(PlanDraft& plan, const TensorDesc& resolved) {
  constexpr std::size_t kAlign = 64;
  const Ref where{Space::folded, plan.folded_bytes};
  plan.folded_bytes += (resolved.layout.bytes + kAlign - 1) / kAlign * kAlign;
  return {where, resolved};
}

void PlanDraft::place_buffers() {
  arena_bytes = place(buffers);
  const auto resolve = [&](Ref& ref) {
    if (ref.space == Space::activation) ref.offset = buffers[ref.offset].offset;
  };
  for (PlanSteps* steps : {&fold, &forward, &loss, &backward, &weight_gradients, &running_statistics})
    for (PlanStep& step : *steps)
      for (Ref& ref : step.args) resolve(ref);
  for (Ref* ref : {&logits, &logits_grad, &input.where, &input_grad.where, &output.where, &output_grad.where})
    resolve(*ref);
}

void PlanGradients::begin(std::size_t parameters) {
  of_nodes_.resize(plan_.nodes.size());
  unfinished_.assign(parameters, 1);
  for (const Node& node : plan_.nodes)
    for (const int entry : {node.weight, node.bias})
      if (entry >= 0 && !plan_.needs_gradient(plan_.number_of(node))) unfinished_[index(entry)] = 0;
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

void PlanGradients::end_sums(const Norm& norm) {
  if (plan_.options.norm != BatchNormMode::sync) return;
  plan_.backward.back().ends_segment = true;
  plan_.backward_all_gathers.push_back({plan_.statistics.of_all(norm.sums).offset, norm.sums_bytes()});
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

void PlanGradients::of_weights(const Node& node, std::function<void()> add) {
  if (!plan_.trains(node)) return;
  if (!plan_.options.split_backward) return add();
  later_.push_back([this, &node, add = std::move(add)] {
    add();
    finished(node.weight, node.bias);
  });
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
  steps_ = &plan_.weight_gradients;
  for (const auto& add_gradients : later_) add_gradients();
}

}  // namespace dp::engine
