#include "command_line/config_file.h"

#include <dp/error.h>
#include <toml++/toml.h>
#include <filesystem>

namespace command_line {
namespace {

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

}  // namespace

std::vector<dp::RecordedOption> read_config_file(const std::string& path) try {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) refuse(path, "not a file; give one that --save-config wrote");
  std::vector<dp::RecordedOption> options;
  for (const auto& [key, node] : toml::parse_file(path))
    if (!node.is_table())
      options.push_back(read_option(path, std::string(key.str()), node));
    else if (key.str() != "resolved")
      refuse(path, "[" + std::string(key.str()) +
                       "] is a table, but options must not be in tables; move its options to the top of the file");
  return options;
} catch (const toml::parse_error& error) {
  refuse(path, "line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
}

}  // namespace command_line
