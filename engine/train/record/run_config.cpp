#include "engine/train/record/run_config.h"

#include <fmt/format.h>

#include <cmath>

#include "dp/run_options.h"
#include "engine/base/text.h"
#include "engine/parallel/parallel_option_table.h"

namespace dp {
namespace {

std::string toml_value(const nlohmann::ordered_json& value) {
  if (value.is_string()) return toml_string(value.get<std::string>());
  if (value.is_array()) {
    std::string out;
    for (const auto& item : value) out += (out.empty() ? "" : ", ") + toml_value(item);
    return "[" + out + "]";
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "nan";
  // TOML's integers have 63 bits and a sign; a seed has 64 bits.
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return toml_string(value.dump());
  return value.dump();
}

std::string to_text(const ParameterGroup& group) {
  std::string text = group.pattern + (group.vectors ? " of one dimension" : "") + ":";
  if (group.frozen) return text + " frozen";
  text += fmt::format(" lr x {}", group.lr_factor);
  return group.weight_decay ? text + fmt::format(", weight decay {}", *group.weight_decay) : text;
}

template <typename Value>
void put(nlohmann::ordered_json& json, const std::string& name, const Value& value) {
  std::visit(
      [&](const auto& held) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) json[name] = held;
      },
      value);
}

nlohmann::ordered_json resolved_part(const TrainerOptions& given, const TrainerOptions& resolved) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["devices"] = nlohmann::ordered_json::array();
  for (const Device& device : resolved.parallel.devices) json["devices"].push_back(to_string(device));
  for (const Option<TrainerOptions>& row : run_options().rows())
    if (row.recorded && row.get(resolved) != row.get(given)) put(json, row.name, row.get(resolved));
  return json;
}

std::string value_text(const nlohmann::ordered_json& value) {
  return value.is_null() ? "none" : value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

nlohmann::ordered_json run_config(const std::string& model, const TrainerOptions& given,
                                  const TrainerOptions& resolved) {
  nlohmann::ordered_json json;
  json["model"] = model;
  for (const Option<TrainerOptions>& row : run_options().rows())
    if (row.recorded) put(json, row.name, row.get(given));
  for (const auto& [name, value] : given.record) put(json, name, value);
  for (const ParameterGroup& group : given.parallel.parameter_groups)
    if (!is_frozen_by_name(group) && !is_no_decay(group)) json["parameter-groups"].push_back(to_text(group));
  json["resolved"] = resolved_part(given, resolved);
  return json;
}

std::string to_toml(const nlohmann::ordered_json& config) {
  std::string values, tables;
  for (const auto& [key, value] : config.items())
    if (value.is_object())
      tables += "\n[" + key + "]\n" + to_toml(value);
    else
      values += key + " = " + toml_value(value) + "\n";
  return values + tables;
}

std::vector<ChangedOption> changed_options(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now) {
  std::vector<ChangedOption> changes;
  const auto in = [](const nlohmann::ordered_json& config, const std::string& name) {
    return config.contains(name) ? config.at(name) : nlohmann::ordered_json();
  };
  for (const auto& [name, value] : now.items())
    if (!value.is_object() && in(before, name) != value) changes.push_back({name, in(before, name), value});
  for (const auto& [name, value] : before.items())
    if (!value.is_object() && !now.contains(name)) changes.push_back({name, value, {}});
  return changes;
}

void continue_record(nlohmann::ordered_json& config, const nlohmann::ordered_json& before) {
  for (const char* const name : {"init", "init-partial"})
    if (before.contains(name)) config[name] = before.at(name);
  const nlohmann::ordered_json resolved = config.at("resolved");  // stays last
  config.erase("resolved");
  config["resolved"] = resolved;
}

std::optional<ChangedOption> changed_devices(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now) {
  const auto devices = [](const nlohmann::ordered_json& config) {
    std::string text;
    for (const auto& device : value_in_effect(nlohmann::json(config), "devices"))
      text += (text.empty() ? "" : ", ") + device.get<std::string>();
    return text;
  };
  if (!before.is_object()) return std::nullopt;
  const std::string then = devices(before), here = devices(now);
  if (then.empty() || then == here) return std::nullopt;
  return ChangedOption{"devices", then, here};
}

std::string to_text(const ChangedOption& change, const std::map<std::string, std::string>& given_by) {
  const auto origin = given_by.find(change.name);
  return fmt::format("{} {} -> {}{}", change.name, value_text(change.before), value_text(change.now),
                     origin == given_by.end() ? "" : " (" + origin->second + ")");
}

nlohmann::json value_in_effect(const nlohmann::json& config, const std::string& name) {
  const auto resolved = config.find("resolved");
  if (resolved != config.end() && resolved->is_object() && resolved->contains(name)) return resolved->at(name);
  return config.contains(name) ? config.at(name) : nlohmann::json();
}

}  // namespace dp
