// The initial state of a run, equal on every rank. Rank 0 reads files and broadcasts what it has read.
#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "dp/process_group.h"
#include "engine/train/restore.h"

namespace dp {

struct Start {
  std::int64_t step = 0, skipped = 0, epoch = 0, batch_in_epoch = 0, since_best = 0;
  double best_top1 = -1;
  bool resumed = false, initialised = false;
  bool state = false, average = false;  // whether the checkpoint holds an optimizer's state and a moving average
  std::int64_t updates = 0;             // of the optimizer
  bool writes = false;                  // whether rank 0 writes a run folder
  bool scaled = false;                  // whether the checkpoint holds a loss scale
  LossScale loss_scale{};
};

// Error(usage) with the first option that differs from rank 0's.
void require_same_options(ProcessGroup& group, nlohmann::ordered_json config);

// Loads the weights of `resumed`, or of options.init, into the network. `resumed` is used on rank 0 only. `classes`:
// the names of the data set's classes. Error(data) if options.init is a file of a checkpoint with others.
Start start_from(DataParallel& net, const TrainerOptions& options, const std::optional<Resumed>& resumed,
                 const std::vector<std::string>& classes, bool writes, const Notice& notice);

}  // namespace dp
