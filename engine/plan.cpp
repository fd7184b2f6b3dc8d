#include "engine/plan.h"

#include <fmt/format.h>

#include <iterator>

#include "dp/error.h"
#include "engine/plan_builder.h"

namespace dp::engine {

Plan::Plan(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
           const NormTable& norms)
    : options_(options) {
  if (options.batch < 1) throw Error(ErrorCode::usage, "a plan needs at least one row");
  if (model.output().rank() != 1)
    throw Error(ErrorCode::usage, "model '" + model.name() + "' ends in " + to_string(model.output()) +
                                      "; its output must be one row of class scores: flatten it");
  PlanBuilder(*this, context, table, norms).build(model);
}

namespace {

std::string place_name(const Ref& ref) {
  static constexpr const char* kNames[] = {"-",     "act",    "val",     "low",   "grad",    "buf",  "moments",
                                           "input", "labels", "samples", "state", "results", "scale"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Space::count));
  const char* name = kNames[static_cast<std::size_t>(ref.space)];
  return ref.space > Space::none && ref.space < Space::input ? fmt::format("{}+{:x}", name, ref.offset) : name;
}

void describe_steps(std::string& text, const char* title, const std::vector<PlanStep>& steps) {
  if (steps.empty()) return;
  text += fmt::format("  {}\n", title);
  for (const PlanStep& step : steps) {
    std::string args;
    for (int i = 0; i < step.arg_count; ++i)
      args += (i ? " " : "") + place_name(step.args[static_cast<std::size_t>(i)]);
    std::string layouts;
    for (const kernels::TensorDesc& tensor : step.op->tensors()) layouts += " " + tensor.layout.name;
    text += fmt::format("    {:<40} {:<24} [{}]{}\n", step.name, step.op->implementation(), args, layouts);
  }
}

}  // namespace

std::vector<Gather> forward_gathers(const NormTable& norms) {
  std::vector<Gather> gathers;
  for (int i = 0; i < norms.count(); ++i) gathers.push_back({norms.norm(i).moments, norms.norm(i).moments_bytes()});
  return gathers;
}

std::vector<Gather> backward_gathers(const NormTable& norms) {
  std::vector<Gather> gathers;
  for (int i = norms.count(); i-- > 0;) gathers.push_back({norms.norm(i).sums, norms.norm(i).sums_bytes()});
  return gathers;
}

std::string Plan::describe() const {
  std::string text = fmt::format(
      "plan for {} rows, {}: {} steps, activations {:.1f} MiB, workspace {:.1f} MiB, {} reorders\n", options_.batch,
      options_.training ? "training" : "evaluation", forward_.size() + loss_.size() + backward_.size(),
      static_cast<double>(arena_bytes_) / (1 << 20), static_cast<double>(workspace_bytes_) / (1 << 20), reorders_);
  describe_steps(text, "forward", forward_);
  describe_steps(text, "loss", loss_);
  describe_steps(text, "backward", backward_);
  describe_steps(text, "running statistics", running_);
  return text;
}

}  // namespace dp::engine
