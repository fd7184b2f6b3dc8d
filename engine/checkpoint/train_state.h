// state.json: where a run stands.
#pragma once

#include <string>

#include "dp/checkpoint.h"
#include "engine/checkpoint/byte_source.h"

namespace dp {

std::string to_json(const TrainState& state);     // Error(usage) for what could not be read again
TrainState read_train_state(ByteSource& source);  // Error(data)

}  // namespace dp
