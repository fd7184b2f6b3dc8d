// dp_train estimate-memory: the memory of a run on each replica and of its process, and the largest batch that fits.
#pragma once

#include <dp/models.h>
#include <dp/trainer.h>

#include "command.h"

namespace dp_train {

// Prints one line per replica, for images of the shape that the data set's name implies, and the parts of the process's
// memory if the data set is there. dp::Error(usage) for an unknown data set.
void estimate_memory(const Command& command, const dp::models::Entry& entry, const dp::TrainerOptions& options);

}  // namespace dp_train
