// Where a run begins, the same on every rank of a world: rank 0 reads files, the others get what it has read.
#pragma once

#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "dp/process_group.h"
#include "engine/train/restore.h"

namespace dp {

struct Start {
  std::int64_t step = 0, skipped = 0, epoch = 0, batch_in_epoch = 0;
  double best_top1 = -1;
  bool resumed = false, initialised = false;
  bool momenta = false, average = false;  // what the checkpoint holds
  bool writes = false;                    // whether rank 0 writes a run folder
  bool scaled = false;                    // whether the checkpoint holds a loss scale
  LossScale loss_scale{};
};

// Error(usage) naming what differs between the options that the ranks were started with.
void require_same_options(ProcessGroup& group, nlohmann::ordered_json config);

// Brings the weights of `resumed`, or of options.init, into the network. `resumed` counts on rank 0 only.
Start start_from(DataParallel& net, const TrainerOptions& options, const std::optional<Resumed>& resumed, bool writes,
                 const Notice& notice);

}  // namespace dp
