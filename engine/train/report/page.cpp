#include "engine/train/report/page.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "dp/error.h"
#include "dp/report.h"
#include "dp/trainer.h"
#include "engine/base/sha256.h"
#include "engine/base/text.h"

namespace dp {
namespace {

using Json = nlohmann::ordered_json;

// Each line as messages show it.
std::string printable_lines(const std::string& text) {
  std::string out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    out += printable(text.substr(begin, end - begin)) + (end < text.size() ? "\n" : "");
    begin = end + 1;
  }
  return out;
}

Json printable_data(const Json& value) {
  if (value.is_string()) return printable_lines(value.get<std::string>());
  if (!value.is_structured()) return value;
  Json out = value.is_array() ? Json::array() : Json::object();
  if (value.is_array())
    for (const Json& item : value) out.push_back(printable_data(item));
  else
    for (const auto& [key, item] : value.items()) out[printable_lines(key)] = printable_data(item);
  return out;
}

std::string replaced(const std::string& text, std::initializer_list<std::pair<char, const char*>> replacements) {
  std::string out;
  for (const char c : text) {
    const char* by = nullptr;
    for (const auto& [from, to] : replacements)
      if (c == from) by = to;
    out += by == nullptr ? std::string(1, c) : by;
  }
  return out;
}

std::string escaped(const std::string& text) {
  return replaced(printable_lines(text), {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}});
}

// The policy of the page allows this script only.
std::string script_hash() {
  constexpr std::string_view kBegin = "<script>", kEnd = "</script>";
  const std::size_t begin = kReportPage.rfind(kBegin) + kBegin.size();
  Sha256 hash;
  hash.add(kReportPage.data() + begin, kReportPage.find(kEnd, begin) - begin);
  return base64(hash.digest());
}

}  // namespace

std::string filled_page(const std::string& title, const std::string& text, const Json& data) {
  std::string page;
  std::size_t at = 0;
  const auto insert = [&](std::string_view mark, const std::string& inserted) {
    const std::size_t found = kReportPage.find(mark, at);
    page.append(kReportPage.substr(at, found - at)) += inserted;
    at = found + mark.size();
  };
  insert("{{script hash}}", script_hash());
  insert("{{title}}", escaped(title));
  insert("{{text}}", escaped(text));
  insert("{{data}}", replaced(json_line(printable_data(data)), {{'<', "\\u003c"}}));
  return page.append(kReportPage.substr(at));
}

std::string report_page(const std::string& title, const std::string& text, const std::string& json) {
  // Bytes that are not UTF-8 become U+FFFD.
  const Json data = Json::parse(Json::parse(json_line(json)).get<std::string>(), nullptr, false);
  if (!data.is_object()) throw Error(ErrorCode::usage, "the data of a report are not a JSON object");
  return filled_page(title, text, data);
}

}  // namespace dp
