#include "engine/train/run_config.h"

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
  return value.dump();
}

std::string to_text(const ParameterGroup& group) {
  std::string text = group.pattern + (group.vectors ? " of one dimension" : "") + ":";
  if (group.frozen) return text + " frozen";
  text += fmt::format(" lr x {}", group.lr_factor);
  return group.weight_decay ? text + fmt::format(", weight decay {}", *group.weight_decay) : text;
}

}  // namespace

nlohmann::ordered_json run_config(const std::string& model, const TrainerOptions& options) {
  nlohmann::ordered_json json;
  json["model"] = model;
  for (const Device& device : options.parallel.devices) json["devices"].push_back(to_string(device));
  for (const Option<TrainerOptions>& row : run_options().rows()) {
    if (!row.recorded) continue;
    std::visit(
        [&](const auto& value) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) json[row.name] = value;
        },
        row.get(options));
  }
  for (const ParameterGroup& group : options.parallel.parameter_groups)
    if (!is_frozen_by_name(group) && !is_no_decay(group)) json["parameter-groups"].push_back(to_text(group));
  return json;
}

std::string to_toml(const nlohmann::ordered_json& flat) {
  std::string out;
  for (const auto& [key, value] : flat.items()) out += key + " = " + toml_value(value) + "\n";
  return out;
}

}  // namespace dp
