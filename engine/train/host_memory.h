#pragma once

#include "dp/memory.h"
#include "dp/trainer.h"

namespace dp {

// A lower bound of the host memory that a CPU replica allocates, in bytes.
std::size_t resident_bytes(const MemoryUse& use, const DataParallelOptions& options);
// Bytes of the tensors of a checkpoint, without running statistics.
std::size_t checkpoint_bytes(const Model& model, const TrainerOptions& options);
// Bytes of the copies of parameters that a run makes at times, for a checkpoint and a digest.
std::size_t bytes_of_copies(const Model& model, const TrainerOptions& options, bool training);
// Like require_memory(), if the replicas have already allocated `held` bytes.
void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training);

}  // namespace dp
