#include "engine/train/record/environment_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "dp/shell.h"
#include "dp/trainer.h"
#include "engine/base/atomic_text.h"
#include "engine/checkpoint/small_json.h"

namespace dp {
namespace {

std::string now() {  // ISO 8601, with the UTC offset
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S%z", &parts);
  return text.data();
}

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

std::string text_of(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json read_parts(const std::string& file) {
  constexpr std::uintmax_t kLongest = 16 << 20;
  std::error_code error;
  const bool readable = std::filesystem::is_regular_file(std::filesystem::symlink_status(file, error)) &&
                        std::filesystem::file_size(file, error) <= kLongest;
  nlohmann::ordered_json json;
  if (readable) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    json = parse_record<nlohmann::ordered_json>(text.str());
  }
  const bool good = json.is_object() && json.contains("parts") && json.at("parts").is_array();
  return good ? json : nlohmann::ordered_json{{"parts", nlohmann::ordered_json::array()}};
}

std::string file_in(const std::string& folder) { return folder + "/env.json"; }

}  // namespace

nlohmann::ordered_json environment_of(const TrainerOptions& options, const DatasetPair& data,
                                      const std::vector<std::string>& devices) {
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
  part["devices"] = devices;
  if (const int stages = options.parallel.pipeline.stages; stages > 1) part["pipeline_stages"] = stages;
  part["data"] = {{"name", options.dataset_name},
                  {"path", path == options.record.end() ? "" : to_text(path->second)},
                  {"training_images", data.train->size()},
                  {"test_images", data.test->size()},
                  {"classes", data.train->classes()}};
  return part;
}

std::string provenance_comment(const nlohmann::ordered_json& part) {
  std::string command;
  for (const auto& word : part.at("command"))
    command += (command.empty() ? "" : " ") + shell_argument(word.get<std::string>());
  const nlohmann::ordered_json& data = part.at("data");
  std::string text =
      fmt::format("{}, started {} on {}\ncommand: {}\ndata: {}, {} training and {} test images, {} classes",
                  part.at("program").get<std::string>(), part.at("started").get<std::string>(),
                  part.at("host").get<std::string>(), command, data.at("name").get<std::string>(),
                  data.at("training_images").dump(), data.at("test_images").dump(), data.at("classes").dump());
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
  nlohmann::ordered_json all = read_parts(file_in(folder));
  all["parts"].push_back(part);
  write_file_atomically(file_in(folder), text_of(all, 1) + "\n");
}

void end_environment(const std::string& folder, nlohmann::ordered_json part, const std::string& how) {
  nlohmann::ordered_json all = read_parts(file_in(folder));
  part["ended"] = now();
  part["end"] = how;
  nlohmann::ordered_json& parts = all["parts"];
  const bool added = !parts.empty() && parts.back().is_object() &&
                     parts.back().value("started", nlohmann::ordered_json()) == part.at("started");
  if (added) parts.erase(parts.size() - 1);
  parts.push_back(part);
  write_file_atomically(file_in(folder), text_of(all, 1) + "\n");
}

}  // namespace dp
