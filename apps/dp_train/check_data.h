#pragma once

#include "command.h"

namespace dp_train {

// Subcommand check-data: reads every image and prints the faults of those that cannot be read. Returns whether there
// are none.
bool check_data(const Command& command);

}  // namespace dp_train
