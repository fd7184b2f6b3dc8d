#pragma once

#include "dp/memory.h"

namespace dp {

// What a replica on the CPU takes of the host's memory, at the least.
std::size_t resident_bytes(const MemoryUse& use, const DataParallelOptions& options);
// require_memory() for replicas that hold so many bytes already.
void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training);

}  // namespace dp
