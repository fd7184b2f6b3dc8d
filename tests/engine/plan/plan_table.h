// A plan as text: one line for each step with its arguments, then its memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dp/model.h"
#include "engine/plan/plan.h"

namespace dp::test {

// An op that is never run.
class NeverRun final : public kernels::Op {
 public:
  explicit NeverRun(std::vector<kernels::TensorDesc> tensors) : tensors_(std::move(tensors)) {}
  void run(kernels::Stream&, std::span<void* const>, void*) override {}
  const std::vector<kernels::TensorDesc>& tensors() const override { return tensors_; }
  std::string implementation() const override { return "none"; }

 private:
  std::vector<kernels::TensorDesc> tensors_;
};

// "act128", "mom0/56" with the stride between parts, "labels", "-".
inline std::string place_text(const engine::Ref& ref) {
  using engine::Space;
  static constexpr const char* kNames[] = {"-",   "act",   "val",    "low",     "folded", "grad",    "buf",
                                           "mom", "input", "labels", "samples", "step",   "results", "scale"};
  std::string text = kNames[static_cast<std::size_t>(ref.space)];
  if (ref.space > Space::none && ref.space < Space::input) text += std::to_string(ref.offset);
  return ref.shard_stride == 0 ? text : text + "/" + std::to_string(ref.shard_stride);
}

inline std::string table_of(const engine::Plan& plan) {
  std::string text;
  const auto add = [&](const char* title, const std::vector<engine::PlanStep>& steps) {
    if (!steps.empty()) text += std::string(title) + "\n";
    for (const engine::PlanStep& step : steps) {
      text += " " + step.name + ":";
      for (int i = 0; i < step.arg_count; ++i) text += " " + place_text(step.args[static_cast<std::size_t>(i)]);
      if (step.ends_segment) text += " segment";
      if (step.ready_from >= 0) text += " ready " + std::to_string(step.ready_from);
      text += "\n";
    }
  };
  add("fold", plan.fold());
  add("forward", plan.forward());
  add("loss", plan.loss());
  add("backward", plan.backward());
  add("weights", plan.weight_gradients());
  add("running", plan.running_statistics());
  text += "arena " + std::to_string(plan.arena_bytes()) + ", workspace " + std::to_string(plan.workspace_bytes()) +
          ", folded " + std::to_string(plan.folded_bytes()) + ", reorders " + std::to_string(plan.reorders()) +
          ", logits " + place_text(plan.logits()) + ", gradient " + place_text(plan.logits_grad()) + "\n";
  if (plan.options().input)
    text += "input " + place_text(plan.input().where) + ", input_grad " + place_text(plan.input_grad().where) +
            ", output " + place_text(plan.output().where) + ", output_grad " + place_text(plan.output_grad().where) +
            "\n";
  return text;
}

inline std::string table_of(const Model& model, const engine::PlanOptions& options, kernels::Context& context) {
  const engine::NormTable norms(model);
  const engine::Plan layouts(model, context, options, nullptr, norms);
  const engine::ParameterTable table(model, layouts.parameter_layouts(), context.compute_type());
  return table_of(engine::Plan(model, context, options, &table, norms));
}

inline std::string table_of(const Model& model, const engine::PlanOptions& options, kernels::NormFusion fusion) {
  kernels::ContextOptions device;
  device.norm_fusion = fusion;
  const auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, device);
  return table_of(model, options, *context);
}

}  // namespace dp::test
