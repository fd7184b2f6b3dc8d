#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/files/byte_source.h"

namespace dp {

// A JSON object from a file of at most `longest` bytes, nested at most four deep. Error(data).
nlohmann::json read_small_json(ByteSource& source, std::uint64_t longest);

}  // namespace dp
