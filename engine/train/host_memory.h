#pragma once

#include "dp/memory.h"
#include "dp/trainer.h"

namespace dp {

// A lower bound of the host memory that a CPU replica allocates, in bytes.
std::size_t resident_bytes(const MemoryUse& use, const DataParallelOptions& options);
// Like require_memory(), if the replicas have already allocated `held` bytes.
void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training);

}  // namespace dp
