// Checks the options of a run, chooses where images are stored, and sets the same initial state on every rank.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "dp/data_parallel.h"
#include "dp/model.h"
#include "dp/process_group.h"
#include "dp/trainer.h"
#include "engine/train/restore.h"

namespace dp {

// Error(usage) for options that cannot work: a number out of range, or a model that does not fit the data.
void check_options(const Model& model, const DatasetPair& data, const TrainerOptions& options);

// Where a run's images are stored.

// Resolves options.images_on to host or device. Call it after the DataParallel is constructed: `automatic` checks the
// free memory of the devices. Error(usage) if device is requested and the data set varies its images itself.
ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options);

// The initial state of a run, equal on every rank. Rank 0 reads files and broadcasts what it has read.

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
