// Rows of a batch for each replica or micro-batch.
#pragma once

#include "dp/parallel_options.h"
#include "kernels/communicator.h"

namespace dp::engine {

// Rows of part `index` when `rows` rows are split into `parts` parts; may be empty.
kernels::Range shard_of(std::int64_t rows, int index, int parts, Split split);

}  // namespace dp::engine
