// state.json: the training progress of a checkpoint.
#pragma once

#include <string>

#include "dp/checkpoint.h"
#include "engine/checkpoint/byte_source.h"

namespace dp {

std::string to_json(const TrainState& state);     // Error(usage) if it could not be read back
TrainState read_train_state(ByteSource& source);  // Error(data)

}  // namespace dp
