// Where a run's images lie.
#pragma once

#include "dp/data_parallel.h"
#include "dp/trainer.h"

namespace dp {

// Resolves options.images_on: host or device. Call it when the network's memory has been placed as far as it is known.
// Error(usage) when the device is asked for and the data set varies its images itself.
ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options);

}  // namespace dp
