// The optimizer of all replicas together: whose state is allocated, how many updates were made, and the numbers of each
// update.
#pragma once

#include <optional>

#include "engine/parallel/replica_set.h"
#include "engine/parallel/state/state_dict.h"

namespace dp::engine {

class ReplicatedOptimizer {
 public:
  ReplicatedOptimizer(ReplicaSet& team, StateDict& state_dict) : team_(team), state_dict_(state_dict) {}

  // Allocates the optimizer's state on all replicas, if its updates use any. Another optimizer's state is lost. Returns
  // whether anything was allocated.
  bool reserve(const Optimizer& optimizer);
  // The rule whose state reserve() would allocate; empty if it would not.
  std::optional<kernels::UpdateRule> missing(const Optimizer& optimizer) const;

  kernels::UpdateInputs inputs(const Optimizer& optimizer) const;  // of the next update
  void updated() { ++updates_; }
  void reported_skipped(std::int64_t steps) { updates_ -= steps; }  // the devices have cleared their counts

  OptimizerState state();
  // Error(data) for an unknown optimizer, slot or tensor; nothing is then changed. Returns as reserve() does.
  bool set_state(const OptimizerState& state);

 private:
  bool reserve_rule(kernels::UpdateRule rule);
  std::int64_t skipped();  // updates that reported_skipped() has not counted yet

  ReplicaSet& team_;
  StateDict& state_dict_;
  std::optional<kernels::UpdateRule> rule_;  // whose state is allocated
  std::int64_t updates_ = 0;                 // including skipped ones that are not reported yet
};

}  // namespace dp::engine
