#pragma once

#include "dp/run_options.h"  // parallel_option_table()

namespace dp {

bool is_frozen_by_name(const ParameterGroup& group);  // a group of --freeze
bool is_no_decay(const ParameterGroup& group);        // the group of --no-decay-norm-bias
// Whether --freeze, --lr-factor and --no-decay-norm-bias describe this group.
bool is_of_options(const std::vector<ParameterGroup>& groups, std::size_t index);

}  // namespace dp
