#pragma once

#include <map>
#include <string>

#include "dp/checkpoint.h"
#include "engine/base/durable.h"

namespace dp {

// Writes a complete safetensors file. Error(usage), before any byte is written, for tensors that the format does not
// allow.
void write_tensors(FileWriter& file, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace dp
