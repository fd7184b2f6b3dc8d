// The optimizer of all replicas: its allocated state, its number of updates, and the numbers of each update.
#pragma once

#include <optional>

#include "engine/state/state_dict.h"
#include "engine/step/team.h"

namespace dp::engine {

class ReplicatedOptimizer {
 public:
  ReplicatedOptimizer(Team& team, StateDict& state_dict) : team_(team), state_dict_(state_dict) {}

  // Prepares all replicas for this kind of update. The state of another optimizer, or with other slots, is lost; the
  // new one is zero. Returns whether any state was allocated or freed.
  bool reserve(const UpdateKind& kind);
  bool has_state() const { return held_.has_value(); }

  kernels::UpdateInputs inputs(const Optimizer& optimizer) const;  // of the next update
  void updated() { ++updates_; }  // call it after each step with an update, also a skipped one
  // Skipped steps are not updates. Call it when the devices have reported `steps` of them and cleared their counts.
  void reported_skipped(std::int64_t steps) { updates_ -= steps; }

  OptimizerState state();
  void describe(OptimizerState& to);  // sets all but the tensors
  std::vector<std::string_view> slots() const { return held_ ? slot_names(*held_) : std::vector<std::string_view>(); }
  // Error(data) for an unknown optimizer, slot or tensor; nothing is then changed. Returns as reserve() does. With a
  // process group, all ranks call this, and rank 0's state is used.
  bool set_state(const OptimizerState& state);

 private:
  struct Loaded {
    UpdateKind kind;
    std::int64_t updates = 0;
  };

  // The state's tensors by slot of its kind, named as parameters. Error(data) as set_state().
  std::vector<StateDict::Tensors> tensors_by_slot(const OptimizerState& state) const;
  std::int64_t unreported_skipped();  // skipped steps that the devices have not reported yet

  Team& team_;
  StateDict& state_dict_;
  UpdateKind kind_;                 // of the next update
  std::optional<UpdateKind> held_;  // whose state is allocated
  std::int64_t updates_ = 0;        // including skipped ones that are not reported yet
};

}  // namespace dp::engine
