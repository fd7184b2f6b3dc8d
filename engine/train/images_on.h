// Where a run's images are stored.
#pragma once

#include "dp/data_parallel.h"
#include "dp/trainer.h"

namespace dp {

// Resolves options.images_on to host or device. Call it after the DataParallel is constructed: `automatic` checks the
// free memory of the devices. Error(usage) if device is requested and the data set varies its images itself.
ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options);

}  // namespace dp
