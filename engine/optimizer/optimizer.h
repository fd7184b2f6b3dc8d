// What differs between the optimizers: their state and the constants of their updates. Their arithmetic is in
// kernels/update_rules.h.
#pragma once

#include <string_view>
#include <vector>

#include "dp/optimizer.h"
#include "kernels/update_rules.h"

namespace dp::engine {

// An optimizer's state tensors and update op depend on this. Its other options may change from step to step.
struct UpdateKind {
  kernels::UpdateRule rule = kernels::UpdateRule::sgd;
  bool state = false;  // whether the update uses the state; SGD without momentum does not

  bool operator==(const UpdateKind&) const = default;
};

UpdateKind kind_of(const Optimizer& optimizer);
kernels::UpdateConstants constants_of(const Optimizer& optimizer);
// Names of the state tensors of a parameter, in the order of the update's arguments.
std::vector<std::string_view> slot_names(kernels::UpdateRule rule);
kernels::UpdateRule rule_named(std::string_view name);  // Error(data) for an unknown name

}  // namespace dp::engine
