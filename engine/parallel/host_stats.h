// Statistics of outputs that are in host memory.
#pragma once

#include "dp/loader.h"
#include "dp/parallel_options.h"
#include "dp/statistics.h"
#include "dp/tensor.h"

namespace dp::engine {

// Adds what a batch has of `stats` besides the loss. `labels` may be empty unless stats.has_labels.
void add_accuracies(const Tensor& outputs, const Tensor& labels, Stats& stats);

// What DataParallel::evaluate() adds to the statistics for these outputs of a batch: loss and accuracies.
Stats stats_of(const Tensor& outputs, const Batch& batch, const DataParallelOptions& options);

}  // namespace dp::engine
