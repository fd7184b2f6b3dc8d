// What training and evaluating share.
#pragma once

#include <optional>

#include "dp/trainer.h"
#include "engine/train/stop_request.h"

namespace dp {

// A pass over the test set, every sample once (`most_batches` > 0: so many batches); nothing when a stop was asked for.
// Leaves no statistics behind.
std::optional<EvalReport> evaluate_all(DataParallel& net, Loader& test, std::int64_t most_batches, StopRequest& stop);

// Places the memory of every batch size that a run meets, the short last ones included.
void prepare_batches(DataParallel& net, const Loader* train, const Loader& test);

std::int64_t eval_batch_size(const TrainerOptions& options);

// The summary's fields that are known before the first step.
RunSummary describe(const DataParallel& net, const TrainerOptions& options);
void set_result(RunSummary& summary, const Stats& test);

}  // namespace dp
