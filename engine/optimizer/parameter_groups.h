// Which parameters belong to which dp::ParameterGroup.
#pragma once

#include <cstdint>
#include <vector>

#include "dp/optimizer.h"
#include "engine/layers/parameters.h"
#include "kernels/update/update_rules.h"

namespace dp::engine {

// Error(usage) if there are too many groups, if a pattern matches no parameter, or if a factor or decay is negative.
void check_groups(const std::vector<ParameterGroup>& groups, const Model& model);

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
