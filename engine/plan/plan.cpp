#include "engine/plan/plan.h"

#include <fmt/format.h>

#include <iterator>
#include <map>

#include "dp/error.h"
#include "engine/plan/op_work.h"
#include "engine/plan/plan_builder.h"

namespace dp::engine {

Plan::Plan(const Model& model, kernels::Context& context, const PlanOptions& options, const ParameterTable* table,
           const NormTable& norms) {
  if (options.batch < 1) throw Error(ErrorCode::usage, "a plan needs at least one row");
  if (options.last && model.output().rank() != 1)
    throw Error(ErrorCode::usage, "model '" + model.name() + "' ends in " + to_string(model.output()) +
                                      "; its output must be one row of class scores: flatten it");
  parts_ = PlanBuilder(options, context, table, norms).build(model);
}

namespace {

std::string place_name(const Ref& ref) {
  static constexpr const char* kNames[] = {"-",       "act",   "val",    "low",     "folded", "grad",    "buf",
                                           "moments", "input", "labels", "samples", "state",  "results", "scale"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Space::count));
  const char* name = kNames[static_cast<std::size_t>(ref.space)];
  return ref.space > Space::none && ref.space < Space::input ? fmt::format("{}+{:x}", name, ref.offset) : name;
}

using KernelCounts = std::map<std::string, int>;

// " | 2 kernels: batch_norm_moments join_moments"
std::string kernels_text(const std::vector<std::string>& kernels, KernelCounts& counts) {
  std::string text;
  for (const std::string& name : kernels) {
    text += " " + name;
    ++counts[name];
  }
  return kernels.empty() ? "" : fmt::format(" | {} kernel{}:{}", kernels.size(), kernels.size() == 1 ? "" : "s", text);
}

void describe_steps(std::string& text, const char* title, const std::vector<PlanStep>& steps,
                    const Plan::KernelsOf& kernels_of, KernelCounts& counts) {
  if (steps.empty()) return;
  text += fmt::format("  {}\n", title);
  for (const PlanStep& step : steps) {
    std::string args;
    for (int i = 0; i < step.arg_count; ++i)
      args += (i ? " " : "") + place_name(step.args[static_cast<std::size_t>(i)]);
    std::string layouts;
    for (const kernels::TensorDesc& tensor : step.op->tensors()) layouts += " " + tensor.layout.name;
    text += fmt::format("    {:<40} {:<24} [{}]{} | {:.2f} MiB{}\n", step.name, step.op->implementation(), args,
                        layouts, work_of(step).bytes / (1 << 20),
                        kernels_of ? kernels_text(kernels_of(step), counts) : std::string());
  }
}

}  // namespace

std::vector<Gather> forward_gathers(const NormTable& norms, int shards) {
  const auto n = static_cast<std::size_t>(shards);
  std::vector<Gather> gathers;
  for (int i = 0; i < norms.count(); ++i) gathers.push_back({norms.norm(i).moments * n, norms.norm(i).moments_bytes()});
  return gathers;
}

std::vector<Gather> backward_gathers(const NormTable& norms, int shards) {
  const auto n = static_cast<std::size_t>(shards);
  std::vector<Gather> gathers;
  for (int i = norms.count(); i-- > 0;) gathers.push_back({norms.norm(i).sums * n, norms.norm(i).sums_bytes()});
  return gathers;
}

std::string Plan::describe(const KernelsOf& kernels_of) const {
  std::string text = fmt::format(
      "plan for {} rows, {}: {} steps, activations {:.1f} MiB, workspace {:.1f} MiB, {} reorders\n",
      parts_.options.batch, parts_.options.training ? "training" : "evaluation",
      parts_.fold.size() + parts_.forward.size() + parts_.loss.size() + parts_.backward.size() + parts_.weights.size(),
      static_cast<double>(parts_.arena_bytes) / (1 << 20), static_cast<double>(parts_.workspace_bytes) / (1 << 20),
      parts_.reorders);
  KernelCounts counts;
  describe_steps(text, "folded weights, once per update", parts_.fold, kernels_of, counts);
  describe_steps(text, "forward", parts_.forward, kernels_of, counts);
  describe_steps(text, "loss", parts_.loss, kernels_of, counts);
  describe_steps(text, "backward", parts_.backward, kernels_of, counts);
  describe_steps(text, "weight gradients", parts_.weights, kernels_of, counts);
  describe_steps(text, "running statistics", parts_.running, kernels_of, counts);
  if (counts.empty()) return text;
  int all = 0;
  for (const auto& [name, count] : counts) all += count;
  text += fmt::format("  {} kernels\n", all);
  for (const auto& [name, count] : counts) text += fmt::format("    {:>4} {}\n", count, name);
  return text;
}

}  // namespace dp::engine
