#pragma once

#include "dp/memory.h"

namespace dp {

// require_memory() for replicas that hold so many bytes already.
void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training);

}  // namespace dp
