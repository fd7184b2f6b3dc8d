#pragma once

#include "dp/memory.h"
#include "dp/trainer.h"

namespace dp {

// The least host memory that a CPU replica allocates.
std::size_t resident_bytes(const MemoryUse& use, const DataParallelOptions& options);
// require_memory() when replicas have already allocated this many bytes.
void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training);

}  // namespace dp
