#pragma once

#include "command.h"

namespace dp_train {

// Subcommand check-data: reads every image and prints why some cannot be read. Returns true if all can.
bool check_data(const Command& command);

}  // namespace dp_train
