// dp_train estimate-memory: the memory of a run on each replica, and the largest batch that fits.
#pragma once

#include <dp/models.h>
#include <dp/trainer.h>

#include "command.h"

namespace dp_train {

// Prints one line per replica. Takes the image shape from the data set's name and reads no file. dp::Error(usage) for
// an unknown data set.
void estimate_memory(const Command& command, const dp::models::Entry& entry, const dp::TrainerOptions& options);

}  // namespace dp_train
