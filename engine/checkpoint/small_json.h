#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/checkpoint/byte_source.h"

namespace dp {

// Parses a record. The result is discarded (Json::is_discarded()) if the text is not valid JSON, or is nested deeper
// than 16 levels: copying, comparing and printing a value recurse.
template <typename Json>
Json parse_record(std::string_view text) {
  constexpr int kMostLevels = 16;
  bool deep = false;
  Json json = Json::parse(
      text,
      [&deep](int depth, typename Json::parse_event_t, Json&) {
        deep = deep || depth > kMostLevels;
        return !deep;
      },
      false);
  return deep ? Json(Json::value_t::discarded) : std::move(json);
}

// Parses a JSON object with at most four levels of nesting. Error(data) begins with `name`.
nlohmann::json parse_small_json(const std::string& text, const std::string& name);
// The same from a file of at most `longest` bytes.
nlohmann::json read_small_json(ByteSource& source, std::uint64_t longest);

}  // namespace dp
