// Text formatting for messages and for files of text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace dp {

// One line of ASCII: other characters are escaped, bytes that are not UTF-8 become U+FFFD, NaN and Inf become null.
std::string json_line(const nlohmann::ordered_json& value);
// A TOML basic string, quotes included.
std::string toml_string(const std::string& text);
std::string csv_field(const std::string& text);  // a field of RFC 4180
bool is_utf8(std::string_view text);
std::string base64(std::span<const std::uint8_t> bytes);
std::string duration(double seconds);              // "0:01:12"; format of Python's timedelta
std::string with_separators(std::int64_t number);  // "1,199,882"
std::string mebibytes(std::size_t bytes);          // "12.3 MiB"

}  // namespace dp
