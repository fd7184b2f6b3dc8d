// Where a run's first weights come from.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/trainer.h"

namespace dp {

using Notice = std::function<void(const std::string&)>;

struct Resumed {
  std::string folder;
  Checkpoint checkpoint;
};

// What options.resume names; nothing when it is empty, or "auto" and `output_dir` has no checkpoint yet. `locked`: the
// caller holds output_dir's lock. Error(data) when what is named can not be read; a newer checkpoint of a run folder that
// can not be is a notice.
std::optional<Resumed> find_resumed(const TrainerOptions& options, bool locked, const Notice& notice);

// Error(usage) naming both values when the checkpoint is of another model, or, unless `weights_only`, of another
// data set, seed, global batch, or order of samples (shuffle, augment, drop-last).
void require_same_run(const Resumed& resumed, const TrainState& wanted, bool weights_only);

// The tensors of `given` that fit `own`. What is missing, unknown or of another shape is named in an Error(data) that
// ends with `remedy`; given a `notice`, it is named there instead, and only nothing that fits is an error.
NamedTensors fitting(const NamedTensors& own, NamedTensors given, const std::string& source, const std::string& remedy,
                     const Notice* notice);

void init_weights(DataParallel& net, const TrainerOptions& options, const Notice& notice);
void restore(DataParallel& net, const Resumed& resumed);

// Error(nonfinite) naming the first tensor that holds NaN or Inf.
void require_finite(const NamedTensors& tensors);

}  // namespace dp
