#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/checkpoint/byte_source.h"

namespace dp {

// Parses a JSON object with at most four levels of nesting. Error(data) begins with `name`.
nlohmann::json parse_small_json(const std::string& text, const std::string& name);
// The same from a file of at most `longest` bytes.
nlohmann::json read_small_json(ByteSource& source, std::uint64_t longest);

}  // namespace dp
