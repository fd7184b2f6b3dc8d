#include "command_line/config_file.h"

#include <dp/error.h>
#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace command_line {
namespace {

constexpr std::uintmax_t kLongest = 1 << 20;  // bytes
constexpr int kMostLevels = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw dp::Error(dp::ErrorCode::usage, "--config '" + path + "': " + why);
}

// The text that a command line would give; empty for what no option takes.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return text;
  if (const auto on = node.value_exact<bool>()) return *on ? "true" : "false";
  if (const auto whole = node.value_exact<std::int64_t>()) return std::to_string(*whole);
  if (const auto number = node.value_exact<double>()) return dp::to_text(dp::OptionValue{*number});
  return std::nullopt;
}

dp::RecordedOption read_option(const std::string& path, const std::string& name, const toml::node& node) {
  dp::RecordedOption option{name, {}};
  const auto add = [&](const toml::node& one) {
    const std::optional<std::string> text = text_of(one);
    if (!text) refuse(path, name + " must be a string, number, boolean or list of these");
    option.texts.push_back(*text);
  };
  if (const toml::array* const list = node.as_array())
    for (const toml::node& one : *list) add(one);
  else
    add(node);
  return option;
}

// The position after the string that begins at `at`. Past the end if it does not end, which the parser refuses.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view three = quote == '"' ? R"(""")" : "'''";
  const bool long_one = text.substr(at).starts_with(three);
  for (at += long_one ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (long_one && text.substr(at).starts_with(three)) {
      at += 3;
      for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more) ++at;  // they belong to the string
      return at;
    } else if (!long_one && text[at] == quote) {
      return at + 1;
    } else if (!long_one && text[at] == '\n') {
      break;
    }
  }
  return text.size();
}

// toml++ makes a table for each part of a dotted key and destroys them by recursion. So keys and brackets are counted
// before it reads them.
void refuse_deep(const std::string& path, std::string_view text) {
  int line = 1, parts = 1, brackets = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, at);
      line += static_cast<int>(std::ranges::count(text.substr(at, end - at), '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.') ++parts;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) parts = 1;
    if (c == '[' || c == '{') ++brackets;
    if ((c == ']' || c == '}') && brackets > 0) --brackets;
    if (parts > kMostLevels || brackets > kMostLevels)
      refuse(path, "line " + std::to_string(line) + ": more than " + std::to_string(kMostLevels) +
                       " levels of tables or lists; options have none, such as: lr = 0.1");
    if (c == '\n') ++line;
    ++at;
  }
}

std::string text_of_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) refuse(path, "not a file; give one that --save-config wrote");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLongest)
    refuse(path, "has " + std::to_string(size) + " bytes; a file of options has at most " + std::to_string(kLongest));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) refuse(path, "cannot be read; check its permissions");
  return text.str();
}

}  // namespace

std::vector<dp::RecordedOption> read_config_file(const std::string& path) try {
  const std::string text = text_of_file(path);
  refuse_deep(path, text);
  std::vector<dp::RecordedOption> options;
  for (const auto& [key, node] : toml::parse(text))
    if (!node.is_table())
      options.push_back(read_option(path, std::string(key.str()), node));
    else if (key.str() != "resolved" && key.str() != "data")
      refuse(path, "[" + std::string(key.str()) +
                       "] is a table, but options must not be in tables; move its options to the top of the file");
  return options;
} catch (const toml::parse_error& error) {
  refuse(path, "line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
}

}  // namespace command_line
