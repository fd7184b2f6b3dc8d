#pragma once

#include "dp/option_table.h"
#include "dp/parallel_options.h"

namespace dp {

// The options of a DataParallel. Its devices and its process group have no row.
const OptionTable<DataParallelOptions>& parallel_option_table();

bool is_frozen_by_name(const ParameterGroup& group);  // a group of --freeze
bool is_no_decay(const ParameterGroup& group);        // the group of --no-decay-norm-bias

}  // namespace dp
