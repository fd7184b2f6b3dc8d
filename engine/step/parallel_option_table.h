#pragma once

#include "dp/option_table.h"
#include "dp/parallel_options.h"

namespace dp {

// The options of a DataParallel. Its devices and its process group have no row.
const OptionTable<DataParallelOptions>& parallel_option_table();

bool is_frozen_by_name(const ParameterGroup& group);  // a group of --freeze
bool is_no_decay(const ParameterGroup& group);        // the group of --no-decay-norm-bias
// Whether --freeze, --lr-factor and --no-decay-norm-bias describe this group.
bool is_of_options(const std::vector<ParameterGroup>& groups, std::size_t index);

}  // namespace dp
