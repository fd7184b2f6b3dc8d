// Checks that the host has enough memory for a run.
#pragma once

#include "dp/dataset.h"
#include "dp/model.h"
#include "dp/trainer.h"

namespace dp {

// Error(device) when training with these options takes more memory than the machine, or a control group of this process, has left: how much
// that is, and the batch or the number of replicas that fits. Makes nothing. Counted are the replicas on the CPU, as estimate_memory() has
// them, and the batches that the loader prepares; `training` false: for an evaluation alone. Trainer calls this
// itself; call it to learn the result before replicas are made. In a world it returns at once: the ranks check together when they make their
// replicas.
void require_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training = true);

}  // namespace dp
