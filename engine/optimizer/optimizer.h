// Names, state and options of the optimizers, parameter groups and schedules. The optimizers are in dp/optimizer.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dp/optimizer.h"
#include "dp/option_table.h"
#include "engine/layers/parameters.h"
#include "kernels/update/update_rules.h"

namespace dp::engine {

using kernels::kind_of;
using kernels::UpdateKind;

// One optimizer of each kind, with default options.
std::vector<Optimizer> every_optimizer();
// The kind that has this state: the slots that are not optional, and those that the tensors name. Error(data) for an
// unknown optimizer.
UpdateKind kind_of(const OptimizerState& state);
// Names of the slots that this kind uses, in the order of the state.
std::vector<std::string_view> slot_names(const UpdateKind& kind);

// The options of optimizers and learning rate schedules.

const OptionTable<Optimizer>& optimizer_options();
const OptionTable<Schedule>& schedule_options();
// Error(usage) names the option that is out of range. Allocates nothing if none is: training steps call it.
void check(const Optimizer& optimizer);

// Which parameters belong to which dp::ParameterGroup.

// Error(usage) if there are too many groups, if a pattern matches no parameter, if a factor or decay is negative, or if
// all parameters are frozen.
void check_groups(const std::vector<ParameterGroup>& groups, const Model& model);
// Returns for each parameter of the model whether it is frozen, or an empty list if none is.
std::vector<bool> frozen_parameters(const std::vector<ParameterGroup>& groups, const Model& model);

class ParameterGroups {
 public:
  // Requires check_groups(). A group may have no parameter in the table.
  ParameterGroups(std::vector<ParameterGroup> groups, const ParameterTable& table);

  // For each kGroupElements elements of the arenas: the index of their group in UpdateInputs::groups, 0 if they have
  // none. Empty without groups.
  const std::vector<std::uint8_t>& map() const { return map_; }
  std::vector<kernels::Range> frozen_in(kernels::Range range) const;  // in ascending order
  void set(kernels::UpdateInputs& inputs, const Optimizer& optimizer) const;

 private:
  std::vector<ParameterGroup> groups_;
  std::vector<std::uint8_t> map_;
};

}  // namespace dp::engine
