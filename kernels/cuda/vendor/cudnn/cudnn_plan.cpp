#include "kernels/cuda/vendor/cudnn/cudnn_plan.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::size_t kMostKnobs = 64, kMostNotes = 32, kMostResults = 32;

std::string name_of_config(const CudnnDescriptor& engine, const CudnnDescriptor& config) {
  std::string name = "eng" + std::to_string(engine.element<std::int64_t>(CudnnAttribute::engine_global_index));
  for (const CudnnDescriptor& knob :
       config.descriptors(CudnnAttribute::config_knob_choices, CudnnKind::knob_choice, kMostKnobs))
    name += " k" + std::to_string(static_cast<int>(knob.element<CudnnKnob>(CudnnAttribute::knob_choice_type))) + "=" +
            std::to_string(knob.element<std::int64_t>(CudnnAttribute::knob_choice_value));
  return name;
}

std::vector<CudnnDescriptor> advised(const CudnnTarget& target, const CudnnGraph& graph, CudnnHeuristics mode) {
  CudnnDescriptor heuristics(*target.api, CudnnKind::heuristics);
  heuristics.set(CudnnAttribute::heuristics_graph, graph.get());
  heuristics.set(CudnnAttribute::heuristics_mode, mode);
  if (target.device_properties != nullptr)
    heuristics.set(CudnnAttribute::heuristics_device_properties, *target.device_properties);
  heuristics.finalize();
  return heuristics.descriptors(CudnnAttribute::heuristics_results, CudnnKind::engine_config, kMostResults);
}

// Empty if these heuristics do not support the graph; others may.
std::vector<CudnnDescriptor> advised_or_none(const CudnnTarget& target, const CudnnGraph& graph,
                                             CudnnHeuristics mode) try {
  return advised(target, graph, mode);
} catch (const CudnnRefusal&) {
  return {};
}

}  // namespace

CudnnConfig::CudnnConfig(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor config)
    : graph_(std::move(graph)), config_(std::move(config)) {
  auto engines = config_.descriptors(CudnnAttribute::config_engine, CudnnKind::engine, 1);
  if (engines.empty()) throw CudnnRefusal("an engine configuration without an engine");
  name_ = name_of_config(engines.front(), config_);
  for (const CudnnNote note : engines.front().elements<CudnnNote>(CudnnAttribute::engine_notes, kMostNotes))
    if (static_cast<int>(note) < 32) notes_ |= 1u << static_cast<int>(note);  // later notes are unknown
  const auto behavior = engines.front().elements<CudnnBehavior>(CudnnAttribute::engine_behavior, kMostNotes);
  compiles_ = std::ranges::find(behavior, CudnnBehavior::runtime_compilation) != behavior.end();
}

bool CudnnConfig::allowed(const CudnnRules& rules) const {
  if (has(CudnnNote::down_convert_inputs) || has(CudnnNote::reduced_precision_reduction)) return false;
  if (rules.deterministic && has(CudnnNote::nondeterministic)) return false;
  if (rules.is_f32 && !rules.tf32 && has(CudnnNote::tensor_core)) return false;
  for (const CudnnNote note : {CudnnNote::fft, CudnnNote::winograd, CudnnNote::winograd_4x4, CudnnNote::winograd_6x6,
                               CudnnNote::winograd_13x13})
    if (!rules.fast && has(note)) return false;
  return true;
}

std::vector<std::shared_ptr<const CudnnConfig>> configs_of(const CudnnTarget& target,
                                                           const std::shared_ptr<const CudnnGraph>& graph,
                                                           const CudnnRules& rules, std::size_t most) {
  std::vector<std::shared_ptr<const CudnnConfig>> configs;
  int compiled = 0;
  const auto known = [&](const std::string& name) {
    return std::any_of(configs.begin(), configs.end(), [&](const auto& other) { return other->name() == name; });
  };
  for (const CudnnHeuristics mode : {CudnnHeuristics::a, CudnnHeuristics::b, CudnnHeuristics::fallback}) {
    if (configs.size() >= most) break;
    for (CudnnDescriptor& descriptor : advised_or_none(target, *graph, mode)) {
      if (configs.size() >= most) break;
      try {
        auto config = std::make_shared<const CudnnConfig>(graph, std::move(descriptor));
        if (!config->allowed(rules) || known(config->name())) continue;
        if (config->compiles() && compiled++ >= kMaxCompiledCudnnCandidates) continue;
        configs.push_back(std::move(config));
      } catch (const CudnnRefusal&) {  // skip a configuration that cannot be read
      }
    }
  }
  return configs;
}

CudnnPlan::CudnnPlan(const CudnnTarget& target, std::shared_ptr<const CudnnConfig> config)
    : config_(std::move(config)), plan_(*target.api, CudnnKind::plan) {
  if (target.handle != nullptr)
    plan_.set(CudnnAttribute::plan_handle, target.handle);
  else if (target.device_properties != nullptr)
    plan_.set(CudnnAttribute::plan_device_properties, *target.device_properties);
  plan_.set(CudnnAttribute::plan_config, config_->get());
  plan_.finalize();
  workspace_bytes_ = static_cast<std::size_t>(plan_.element<std::int64_t>(CudnnAttribute::plan_workspace_size));
}

}  // namespace dp::kernels::cuda
