#include "engine/train/record/run_config.h"

#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "dp/error.h"
#include "dp/report.h"
#include "dp/run_options.h"
#include "dp/shell.h"
#include "dp/trainer.h"
#include "engine/base/files.h"
#include "engine/base/text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/step/parallel_option_table.h"
#include "engine/train/start.h"

namespace dp {
namespace {

std::string now() { return local_time(std::time(nullptr)); }

std::string host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(printable(word));
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string indented(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json read_config_parts(const std::string& file) {
  constexpr std::uintmax_t kLongest = 16 << 20;
  std::error_code error;
  const bool readable = std::filesystem::is_regular_file(std::filesystem::symlink_status(file, error)) &&
                        std::filesystem::file_size(file, error) <= kLongest;
  nlohmann::ordered_json json;
  if (readable) json = parse_record<nlohmann::ordered_json>(read_file(file));
  const bool good = json.is_object() && json.contains("parts") && json.at("parts").is_array();
  return good ? json : nlohmann::ordered_json{{"parts", nlohmann::ordered_json::array()}};
}

std::string file_in(const std::string& folder) { return folder + "/env.json"; }

}  // namespace

std::string local_time(std::time_t time) {
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S%z", &parts);
  return text.data();
}

nlohmann::ordered_json environment_of(const TrainerOptions& options, const DatasetPair& data, const DataParallel& net) {
  std::error_code error;
  const DeviceKind kind = options.parallel.devices.front().kind;
  const auto path = std::find_if(options.record.begin(), options.record.end(),
                                 [](const auto& entry) { return entry.first == "data-path"; });
  nlohmann::ordered_json part;
  part["started"] = now();
  part["program"] = options.program;
  part["command"] = command_line();
  part["folder"] = std::filesystem::current_path(error).string();
  part["host"] = host();
  part["environment"] = lines_of(describe_environment(kind));
  part["devices"] = net.device_names();
  if (kind == DeviceKind::cuda) part["gpus"] = net.device_identities();
  if (const int stages = options.parallel.pipeline.stages; stages > 1) part["pipeline_stages"] = stages;
  part["data"] = {{"name", options.dataset_name},
                  {"path", path == options.record.end() ? "" : to_text(path->second)},
                  {"training_images", data.train->size()},
                  {"test_images", data.test->size()},
                  {data.train->has_targets() ? "targets" : "classes", data.train->classes()}};
  return part;
}

std::string provenance_comment(const nlohmann::ordered_json& part) {
  std::string command;
  for (const auto& word : part.at("command"))
    command += (command.empty() ? "" : " ") + shell_argument(word.get<std::string>());
  const nlohmann::ordered_json& data = part.at("data");
  const char* const of_each = data.contains("targets") ? "targets" : "classes";
  std::string text =
      fmt::format("{}, started {} on {}\ncommand: {}\ndata: {}, {} training and {} test images, {} {}",
                  part.at("program").get<std::string>(), part.at("started").get<std::string>(),
                  part.at("host").get<std::string>(), command, data.at("name").get<std::string>(),
                  data.at("training_images").dump(), data.at("test_images").dump(), data.at(of_each).dump(), of_each);
  if (const std::string path = data.at("path"); !path.empty()) text += ", from " + path;
  std::string comment;
  for (const std::string& line : lines_of(text)) comment += "# " + printable(line) + "\n";
  return comment;
}

void add_memory(nlohmann::ordered_json& part, const DataParallel& net) {
  nlohmann::ordered_json replicas = nlohmann::ordered_json::array();
  for (int replica = 0; replica < net.size(); ++replica) {
    const MemoryUse use = net.memory_use(replica);
    replicas.push_back({{"weights", use.weights},
                        {"gradients", use.gradients},
                        {"optimizer", use.optimizer},
                        {"statistics", use.statistics},
                        {"average", use.average},
                        {"activations", use.activations},
                        {"workspace", use.workspace},
                        {"other", use.other}});
  }
  part["memory"] = std::move(replicas);
}

void add_environment(const std::string& folder, const nlohmann::ordered_json& part) {
  nlohmann::ordered_json all = read_config_parts(file_in(folder));
  all["parts"].push_back(part);
  write_file_atomically(file_in(folder), indented(all, 1) + "\n");
}

void end_environment(const std::string& folder, nlohmann::ordered_json part, const std::string& how) {
  nlohmann::ordered_json all = read_config_parts(file_in(folder));
  part["ended"] = now();
  part["end"] = how;
  nlohmann::ordered_json& parts = all["parts"];
  const bool added = !parts.empty() && parts.back().is_object() &&
                     parts.back().value("started", nlohmann::ordered_json()) == part.at("started");
  if (added) parts.erase(parts.size() - 1);
  parts.push_back(part);
  write_file_atomically(file_in(folder), indented(all, 1) + "\n");
}

void record_failure(const std::string& run_folder, const std::string& how) {
  nlohmann::ordered_json all = read_config_parts(file_in(run_folder));
  if (all["parts"].empty()) return;
  const std::int64_t step = std::max<std::int64_t>(saved_step(run_folder), 0);
  all["failures"].push_back({{"time", now()}, {"end", how}, {"step", step}});
  write_file_atomically(file_in(run_folder), indented(all, 1) + "\n");
}

LastStart last_start(const std::string& run_folder) {
  const nlohmann::ordered_json all = read_config_parts(file_in(run_folder));
  const nlohmann::ordered_json& parts = all.at("parts");
  LastStart last{parts.size(), {}};
  if (parts.empty() || !parts.back().is_object()) return last;
  for (const auto& gpu : parts.back().value("gpus", nlohmann::ordered_json::array()))
    if (gpu.is_string() && std::ranges::find(last.gpus, gpu.get<std::string>()) == last.gpus.end())
      last.gpus.push_back(gpu);
  return last;
}

// Reads and writes the record of a run's options.

namespace {

// Keys that are no options, and options of the first start.
constexpr std::array<std::string_view, 5> kNotRepeated{"devices", "parameter-groups", "init", "init-partial",
                                                       "resolved"};
// Records without "resolved" have these as resolved, not as given.
constexpr std::array<std::string_view, 6> kResolvedOnce{"threads-per-replica", "workers", "images-on", "comm",
                                                        "bucket-mb",           "reduce"};

bool is_in(const auto& names, const std::string& name) { return std::ranges::find(names, name) != names.end(); }

std::string plain_text(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string resumed_config(const std::string& resume, const std::string& output_dir) {
  TrainerOptions options;
  options.resume = resume, options.output_dir = output_dir;
  const std::string folder = find_resumed_folder(options, /*locked=*/false, {});
  if (folder.empty()) return "";
  try {
    VerifiedCheckpoint files = open_checkpoint(folder, Links::follow);
    const std::string config = read_train_state(files.state).config;
    return config.empty() ? "{}" : config;
  } catch (const Error& error) {
    rethrow_with_remedy(error, kAnotherCheckpoint);
  }
}

std::vector<RecordedOption> recorded_options(const std::string& config) {
  const auto json = parse_record<nlohmann::ordered_json>(config);
  if (!json.is_object()) throw Error(ErrorCode::data, "the recorded options are not a JSON object");
  std::vector<RecordedOption> options;
  for (const auto& [name, value] : json.items()) {
    if (is_in(kNotRepeated, name) || value.is_object() || value.is_null()) continue;
    if (!json.contains("resolved") && is_in(kResolvedOnce, name)) continue;
    RecordedOption option{name, {}};
    if (!value.is_array()) option.texts.push_back(plain_text(value));
    for (const auto& item : value.is_array() ? value : nlohmann::ordered_json::array())
      option.texts.push_back(plain_text(item));
    options.push_back(std::move(option));
  }
  return options;
}

void save_config(const std::string& file, const std::string& model, const TrainerOptions& options) {
  nlohmann::ordered_json config = run_config(model, options, options);
  config.erase("resolved");
  write_file_atomically(file, to_toml(config));
}

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
  const std::vector<ParameterGroup>& groups = given.parallel.parameter_groups;
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (!is_of_options(groups, i)) json["parameter-groups"].push_back(to_text(groups[i]));
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
