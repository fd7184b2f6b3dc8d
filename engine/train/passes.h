// Functions for training and evaluation.
#pragma once

#include <functional>
#include <optional>

#include "dp/trainer.h"
#include "engine/train/stop_request.h"

namespace dp {

using OnWork = std::function<void(const WorkReport&)>;

// The next batch of the loader's epoch; null at its end. If the batch cannot be prepared, requests a stop and returns
// null.
const Batch* next_batch(Loader& loader, StopRequest& stop);

// Evaluates the whole test set, or its first `most_batches` batches if that is above 0. Returns nothing if a stop was
// requested. Clears the statistics and phase times of `net`. `on_work` may be empty.
std::optional<EvalReport> evaluate_all(DataParallel& net, Loader& test, std::int64_t most_batches, StopRequest& stop,
                                       const OnWork& on_work);

// Allocates the memory for every batch size of a run, including short last batches. `on_work` may be empty.
void prepare_batches(DataParallel& net, const Loader* train, const Loader& test, const Optimizer& optimizer,
                     const OnWork& on_work);

std::int64_t eval_batch_size(const TrainerOptions& options);

// The summary's fields that are known before the first step.
RunSummary describe(const DataParallel& net, const TrainerOptions& options);
void set_result(RunSummary& summary, const Stats& test);

}  // namespace dp
