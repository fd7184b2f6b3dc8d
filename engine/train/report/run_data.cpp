#include "engine/train/report/run_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>

#include "dp/error.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

double number(const nlohmann::json& json, const char* field) {
  const auto at = json.find(field);
  return at != json.end() && at->is_number() ? at->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::string text_of(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return "";
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void add_point(Curve& curve, const nlohmann::json& line, const char* field) {
  const Point point{number(line, "step"), number(line, field)};
  if (std::isfinite(point.x) && std::isfinite(point.y)) curve.push_back(point);
}

// Removes fields of another type, so that readers need not check.
template <typename Json>
void keep_typed(Json& object, std::initializer_list<std::pair<const char*, bool (Json::*)() const noexcept>> types) {
  for (const auto& [name, is_right] : types)
    if (const auto at = object.find(name); at != object.end() && !((*at).*is_right)()) object.erase(at);
}

void keep_changes(nlohmann::json& line) {
  nlohmann::json changes = nlohmann::json::array();
  for (const auto& change : line.value("changes", nlohmann::json::array()))
    if (change.is_object() && change.contains("option") && change["option"].is_string()) changes.push_back(change);
  line["changes"] = changes;
}

nlohmann::ordered_json read_parts(const std::string& text) {
  using Json = nlohmann::ordered_json;
  const Json environment = parse_record<Json>(text);
  Json parts = Json::array();
  if (!environment.is_object() || !environment.contains("parts")) return parts;
  for (Json part : environment.at("parts")) {
    if (!part.is_object()) continue;
    keep_typed<Json>(part, {{"data", &Json::is_object}, {"pipeline_stages", &Json::is_number_unsigned}});
    if (part.contains("data")) keep_typed<Json>(part["data"], {{"test_images", &Json::is_number}});
    parts.push_back(std::move(part));
  }
  return parts;
}

double& sum_of(std::vector<std::pair<std::string, double>>& sums, const std::string& name) {
  for (auto& [known, sum] : sums)
    if (known == name) return sum;
  return sums.emplace_back(name, 0).second;
}

std::string without_quotes(const std::string& value) {
  const bool quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
  return quoted ? value.substr(1, value.size() - 2) : value;
}

// The lines before the first table.
std::vector<std::pair<std::string, std::string>> read_options(const std::string& toml) {
  std::vector<std::pair<std::string, std::string>> options;
  std::istringstream in(toml);
  for (std::string line; std::getline(in, line) && !line.starts_with('[');) {
    const std::size_t equals = line.find(" = ");
    if (!line.starts_with('#') && equals != std::string::npos)
      options.emplace_back(line.substr(0, equals), without_quotes(line.substr(equals + 3)));
  }
  return options;
}

std::string latest_config(const std::string& folder) {
  std::string latest = folder + "/config.toml";
  std::error_code error;
  for (int number = 2;; ++number) {
    const std::string next = folder + "/config." + std::to_string(number) + ".toml";
    if (!fs::is_regular_file(next, error)) return latest;
    latest = next;
  }
}

}  // namespace

std::string RunData::end() const { return summary.is_object() ? summary.value("end", "-") : "-"; }

std::string RunData::option(const std::string& wanted) const {
  const auto at =
      std::find_if(options.begin(), options.end(), [&](const auto& option) { return option.first == wanted; });
  return at == options.end() ? "" : at->second;
}

const Curve& RunData::curve(const char* field) const {
  static const Curve none;
  const auto at = training.find(field);
  return at == training.end() ? none : at->second;
}

Curve RunData::test_curve(const char* field, bool average) const {
  Curve curve;
  for (const nlohmann::json& line : evaluations)
    if (line.value("average", false) == average) add_point(curve, line, field);
  return curve;
}

std::vector<std::vector<std::pair<std::string, double>>> RunData::phases() const {
  auto sums = phase_sums;
  const double loading = loading_seconds();
  for (auto& replica : sums)
    for (auto& [phase, seconds] : replica)
      if (phase == "waiting") seconds = std::max(0.0, seconds - loading);
  return sums;
}

double RunData::loading_seconds() const {
  const Curve &times = curve("seconds_train"), &shares = curve("loading_share");
  double seconds = 0, before = 0;
  auto share = shares.begin();
  for (const auto& [step, time] : times) {
    while (share != shares.end() && share->x < step) ++share;
    if (share != shares.end() && share->x == step) seconds += share->y * std::max(0.0, time - before);
    before = time;
  }
  return seconds;
}

namespace {

void add_training(RunData& run, const nlohmann::json& line) {
  for (const auto& [field, value] : line.items())
    if (value.is_number()) add_point(run.training[field], line, field.c_str());
  const auto phases = line.find("phases");
  if (phases == line.end() || !phases->is_array()) return;
  run.phase_sums.resize(std::max(run.phase_sums.size(), phases->size()));
  for (std::size_t replica = 0; replica < phases->size(); ++replica)
    for (const auto& [phase, seconds] : (*phases)[replica].items())
      if (seconds.is_number()) sum_of(run.phase_sums[replica], phase) += seconds.get<double>();
}

}  // namespace

RunData read_run(const std::string& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder + "/metrics.jsonl", error))
    throw Error(ErrorCode::data, "'" + folder + "' has no metrics.jsonl; name the folder of a run");
  RunData run;
  run.name = fs::path(folder).lexically_normal().filename().string();
  if (run.name.empty() || run.name == ".") run.name = fs::canonical(folder, error).filename().string();
  run.summary = parse_record<nlohmann::json>(text_of(folder + "/summary.json"));
  using Json = nlohmann::json;
  if (!run.summary.is_object())
    run.summary = nullptr;
  else
    keep_typed<Json>(run.summary, {{"interrupted", &Json::is_boolean}, {"end", &Json::is_string}});
  run.parts = read_parts(text_of(folder + "/env.json"));
  run.options = read_options(text_of(latest_config(folder)));
  run.predictions = read_predictions(folder + "/predictions.json");
  std::ifstream lines(folder + "/metrics.jsonl", std::ios::binary);
  for (std::string text; std::getline(lines, text);) {
    Json line = parse_record<Json>(text);
    if (!line.is_object() || !line.contains("kind")) continue;
    keep_typed<Json>(line, {{"average", &Json::is_boolean},
                            {"skipped", &Json::is_number_integer},
                            {"step", &Json::is_number_integer},
                            {"changes", &Json::is_array}});
    const Json kind = line["kind"];
    if (kind == "resumed") keep_changes(line);
    if (kind == "train")
      add_training(run, line);
    else if (kind == "eval")
      run.evaluations.push_back(std::move(line));
    else if (kind == "resumed")
      run.resumptions.push_back(std::move(line));
  }
  return run;
}

}  // namespace dp
