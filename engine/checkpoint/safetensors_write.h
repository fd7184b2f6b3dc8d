#pragma once

#include <map>
#include <string>

#include "dp/checkpoint.h"
#include "engine/base/durable.h"

namespace dp {

// Writes the tensors as a whole safetensors file. Error(usage) for tensors that no such file may hold, before any byte.
void write_tensors(FileWriter& file, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace dp
