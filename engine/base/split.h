// Rows of a batch for each replica or micro-batch.
#pragma once

#include <string>
#include <vector>

#include "dp/parallel_options.h"
#include "kernels/comm/communicator.h"

namespace dp::engine {

inline constexpr int kMostSplitWeight = 1'000'000;

// Rows of part `index` when `rows` rows are split into `parts` parts; may be empty.
kernels::Range shard_of(std::int64_t rows, int index, int parts, Split split);
// Rows of part `index` when each part gets a share in proportion to its weight; may be empty.
kernels::Range shard_of(std::int64_t rows, int index, const std::vector<int>& weights);

// "balanced", "chunk", or the weights as "3:1".
std::string split_text(const DataParallelOptions& options);
// Sets split and split_weights. Error(usage) for any other text.
void read_split(const std::string& text, DataParallelOptions& options);

}  // namespace dp::engine
