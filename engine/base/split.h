// Which rows of a batch a replica or a micro-batch gets.
#pragma once

#include "dp/parallel_options.h"
#include "kernels/communicator.h"

namespace dp::engine {

// Part `index` of `parts` of `rows` rows; empty when there are fewer chunks than parts.
kernels::Range shard_of(std::int64_t rows, int index, int parts, Split split);

}  // namespace dp::engine
