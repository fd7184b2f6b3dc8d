#include "engine/train/report/device_section.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/train/report/chart.h"

namespace dp {
namespace {

std::string label_of(const std::vector<RunData>& runs, const RunData& run, std::size_t replica) {
  const auto& devices =
      run.parts.empty() ? nlohmann::ordered_json() : run.parts.back().value("devices", nlohmann::ordered_json());
  const bool known = devices.is_array() && replica < devices.size() && devices[replica].is_string();
  const auto stages = run.parts.empty() ? std::size_t{1} : run.parts.back().value("pipeline_stages", std::size_t{1});
  const std::string stage = stages > 1 ? fmt::format(" stage {}", replica % stages) : std::string();
  return fmt::format("{}replica {}{} {}", runs.size() > 1 ? run.name + ", " : "", replica / std::max(stages, {1}),
                     stage, known ? devices[replica].get<std::string>() : "");
}

std::string times(const std::vector<RunData>& runs) {
  std::vector<Bar> bars;
  for (const RunData& run : runs) {
    const auto phases = run.phases();
    for (std::size_t replica = 0; replica < phases.size(); ++replica) {
      Bar bar{label_of(runs, run, replica), phases[replica]};
      bar.parts.emplace_back("data loading", run.loading_seconds());
      bars.push_back(std::move(bar));
    }
  }
  return bar_chart("Time of the recorded steps", "seconds by phase, each replica", bars);
}

std::string memory(const std::vector<RunData>& runs) {
  constexpr double kMebibyte = 1048576;
  std::vector<Bar> bars;
  for (const RunData& run : runs) {
    if (run.parts.empty()) continue;
    const auto replicas = run.parts.back().value("memory", nlohmann::ordered_json());
    if (!replicas.is_array()) continue;
    for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
      if (!replicas[replica].is_object()) continue;
      Bar bar{label_of(runs, run, replica), {}};
      for (const auto& [kind, bytes] : replicas[replica].items())
        if (bytes.is_number() && bytes.get<double>() >= 0)
          bar.parts.emplace_back(kind, bytes.get<double>() / kMebibyte);
      bars.push_back(std::move(bar));
    }
  }
  return bar_chart("Memory", "MiB by purpose, each replica", bars);
}

struct Layer {
  std::string name, implementation;
  double seconds = 0, floor = 0;
};

std::vector<Layer> layers_of(const RunData& run) {
  std::vector<Layer> layers;
  if (!run.summary.is_object() || !run.summary.contains("layers")) return layers;
  for (const auto& json : run.summary.at("layers")) {
    const auto text = [&](const char* field) {
      return json.contains(field) && json[field].is_string() ? json[field].get<std::string>() : std::string();
    };
    const auto seconds = [&](const char* field) {
      return json.contains(field) && json[field].is_number() ? json[field].get<double>() : 0.0;
    };
    if (json.is_object())
      layers.push_back({text("name"), text("implementation"), seconds("seconds"), seconds("floor_seconds")});
  }
  std::stable_sort(layers.begin(), layers.end(), [](const Layer& a, const Layer& b) { return a.seconds > b.seconds; });
  return layers;
}

std::string layer_table(const RunData& run) {
  constexpr std::size_t kMost = 15;
  const std::vector<Layer> layers = layers_of(run);
  if (layers.empty())
    return "<p class=\"soft\"><code>--profile</code> adds the slowest layers, each beside its floor.</p>\n";
  double all = 0;
  for (const Layer& layer : layers) all += layer.seconds;
  std::string rows;
  for (std::size_t i = 0; i < std::min(layers.size(), kMost); ++i) {
    const Layer& layer = layers[i];
    const bool known = layer.floor > 0;
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{:.3f}</td><td class=\"number\">{:.1f}</td><td class=\"number\">{}</td>"
        "<td class=\"number\">{}</td><td>{}</td></tr>\n",
        escaped(layer.name), 1e3 * layer.seconds, all > 0 ? 100 * layer.seconds / all : 0.0,
        known ? fmt::format("{:.3f}", 1e3 * layer.floor) : "-",
        known ? fmt::format("{:.1f}", layer.seconds / layer.floor) : "-", escaped(layer.implementation));
  }
  return "<h3>The slowest layers</h3>\n<p class=\"soft\">Of replica 0, median of the traced steps. The floor is a "
         "lower "
         "bound: arithmetic or memory traffic at the device's rates.</p>\n<div class=\"wide\"><table><tr><th>layer</th>"
         "<th>ms</th><th>%</th><th>floor (ms)</th><th>x floor</th><th>implementation</th></tr>\n" +
         rows + "</table></div>\n";
}

}  // namespace

std::string device_section(const std::vector<RunData>& runs) {
  const std::string charts = times(runs) + memory(runs);
  std::string page = charts.empty() ? "" : "<h2>Time and memory</h2>\n<div class=\"charts\">\n" + charts + "</div>\n";
  return runs.size() == 1 ? page + layer_table(runs.front()) : page;
}

}  // namespace dp
