#include "engine/checkpoint/small_json.h"

#include <string>

#include "engine/base/fault.h"

namespace dp {

nlohmann::json parse_small_json(const std::string& text, const std::string& name) try {
  constexpr std::size_t kMostValues = std::size_t{1} << 19;  // each takes up to 60 bytes of memory
  std::size_t values = 0;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json&) {
    if (depth > 4) throw_data(name, "is nested more than four deep");
    using Event = nlohmann::json::parse_event_t;
    const bool begins = event == Event::value || event == Event::array_start || event == Event::object_start;
    if (begins && ++values > kMostValues) throw_data(name, "has more than 524,288 values");
    return true;
  };
  nlohmann::json json = nlohmann::json::parse(text, check);
  if (!json.is_object()) throw_data(name, "is not a JSON object");
  return json;
} catch (const nlohmann::json::exception&) {  // its message may quote the file
  throw_data(name, "is not valid JSON; it is damaged");
}

nlohmann::json read_small_json(ByteSource& source, std::uint64_t longest) {
  if (source.size() > longest)
    throw_data(source.name(), "has " + std::to_string(source.size()) + " bytes, but at most " +
                                  std::to_string(longest) + " are expected");
  std::string text(source.size(), '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  if (text.find('\0') != std::string::npos) throw_data(source.name(), "contains zero bytes; it is damaged");
  return parse_small_json(text, source.name());
}

}  // namespace dp
