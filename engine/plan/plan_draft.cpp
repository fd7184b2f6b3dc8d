#include "engine/plan/plan_draft.h"

#include <algorithm>

namespace dp::engine {

using namespace kernels;

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
  return {e.shape, context.compute_type(), e.layout};
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
  return as(steps, reader, layer_weights(entry), wanted);
}

void PlanDraft::place_buffers() {
  arena_bytes = place(buffers);
  const auto resolve = [&](Ref& ref) {
    if (ref.space == Space::activation) ref.offset = buffers[ref.offset].offset;
  };
  for (PlanSteps* steps : {&fold, &forward, &loss, &backward, &weights, &running})
    for (PlanStep& step : *steps)
      for (Ref& ref : step.args) resolve(ref);
  for (Ref* ref : {&logits, &logits_grad, &input.where, &input_grad.where, &output.where, &output_grad.where})
    resolve(*ref);
}

}  // namespace dp::engine
