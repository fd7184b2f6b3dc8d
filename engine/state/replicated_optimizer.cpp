#include "engine/state/replicated_optimizer.h"

#include <fmt/format.h>

#include <algorithm>

namespace dp::engine {

constexpr std::int64_t kMostUpdates = std::int64_t{1} << 53;  // as for steps in checkpoints

bool ReplicatedOptimizer::reserve(const UpdateKind& kind) {
  if (kind == kind_) return false;
  const auto needed = kind.slots != 0 ? std::optional(kind) : std::nullopt;
  const auto held = held_ && kind.keeps(*held_) ? held_ : needed;
  const bool changes = held != held_;
  if (held_ || updates_ != 0) {
    team_.wait_for_all();
    // A new optimizer begins with update 0; the devices still count earlier skipped steps.
    if (changes) updates_ = unreported_skipped();
  }
  team_.on_workers([&](Worker& worker) { worker.gradient_sync->optimizer().ensure_state(kind); });
  kind_ = kind;
  held_ = held;
  return changes;
}

kernels::UpdateInputs ReplicatedOptimizer::inputs(const Optimizer& optimizer) const {
  kernels::UpdateInputs inputs;
  team_.setup.stages.front().groups->set(inputs, optimizer);
  inputs.options = kernels::rule_options(optimizer);
  inputs.updates = updates_;
  return inputs;
}

std::int64_t ReplicatedOptimizer::unreported_skipped() {
  kernels::StepResults results;
  team_.on_first_worker([&](Worker& first) {
    first.gradient_sync->wait_until_idle();
    first.compute().download(&results, first.arenas.step_results(), sizeof results);
    first.compute().synchronize();
  });
  return results.skipped_steps;
}

void ReplicatedOptimizer::describe(OptimizerState& to) {
  to.optimizer = held_ ? name_of(*held_) : "";
  to.updates = held_ ? updates_ - unreported_skipped() : 0;
}

OptimizerState ReplicatedOptimizer::state() {
  OptimizerState state;
  describe(state);
  std::size_t slot = 0;
  for (const std::string_view slot_name : slots())
    for (auto& [name, tensor] : state_dict_.optimizer_slot(slot++))
      state.tensors.emplace_back(std::string(slot_name) + "." + name, std::move(tensor));
  return state;
}

bool ReplicatedOptimizer::set_state(const OptimizerState& state) {
  const std::vector<StateDict::Tensors> slots = tensors_by_slot(state);
  Loaded loaded{slots.empty() ? UpdateKind{} : kind_of(state), state.updates};
  const bool leads = !team_.setup.options.process_group || team_.setup.options.process_group->leads();
  if (team_.setup.options.process_group) loaded = team_.values_of_all_ranks(loaded).front();
  if (loaded.kind.slots == 0) return false;
  const bool changed = reserve(loaded.kind);
  for (std::size_t slot = 0; leads && slot < slots.size(); ++slot) state_dict_.set_optimizer_slot(slot, slots[slot]);
  if (team_.setup.options.process_group)
    team_.on_workers([](Worker& worker) { worker.gradient_sync->broadcast_state(); });
  updates_ = loaded.updates + unreported_skipped();
  return changed;
}

std::vector<StateDict::Tensors> ReplicatedOptimizer::tensors_by_slot(const OptimizerState& state) const {
  if (state.optimizer.empty()) return {};
  const auto slots = slot_names(kind_of(state));
  if (state.updates < 0 || state.updates >= kMostUpdates)
    throw Error(ErrorCode::data,
                fmt::format("optimizer '{}' cannot have made {} updates", state.optimizer, state.updates));
  std::vector<StateDict::Tensors> tensors(slots.size());
  for (const auto& [name, tensor] : state.tensors) {
    const std::size_t dot = name.find('.');
    const auto slot = std::find(slots.begin(), slots.end(), std::string_view(name).substr(0, dot));
    if (dot == std::string::npos || slot == slots.end())
      throw Error(ErrorCode::data, "optimizer '" + state.optimizer + "' has no state '" + name + "'");
    tensors[static_cast<std::size_t>(slot - slots.begin())].emplace_back(name.substr(dot + 1), tensor);
  }
  for (const StateDict::Tensors& slot : tensors) state_dict_.check_slot(slot);
  return tensors;
}

}  // namespace dp::engine
