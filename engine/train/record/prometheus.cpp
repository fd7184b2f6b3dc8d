#include "engine/train/record/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "engine/base/files.h"

namespace dp {
namespace {

// A field of a record, divided by `unit`. The name has Prometheus's base unit, and _total if the value only grows.
struct Figure {
  std::string_view kind, field, name, labels;
  double unit;
  const char* help;
};

constexpr double kPercent = 100;
constexpr std::array kFigures{
    Figure{"train", "step", "dp_steps_total", "", 1, "Optimizer steps."},
    Figure{"train", "epoch", "dp_epoch", "", 1, "Number of the epoch, from 0."},
    Figure{"train", "lr", "dp_learning_rate", "", 1, "Learning rate."},
    Figure{"train", "loss", "dp_train_loss", "", 1, "Mean loss of the steps since the last report."},
    Figure{"train", "top1", "dp_train_accuracy_ratio", "top=\"1\"", kPercent, "Of the steps since the last report."},
    Figure{"train", "top5", "dp_train_accuracy_ratio", "top=\"5\"", kPercent, ""},
    Figure{"train", "images_per_second", "dp_images_per_second", "", 1, "Training images per second."},
    Figure{"train", "loading_share", "dp_loading_ratio", "", 1, "Part of the time spent waiting for data."},
    Figure{"train", "seconds_train", "dp_train_seconds_total", "", 1, "Seconds of training."},
    Figure{"train", "grad_norm", "dp_gradient_norm", "", 1, "L2 norm of the last gradient, before clipping."},
    Figure{"train", "loss_scale", "dp_loss_scale", "", 1, "Loss scale of the next step, with float16."},
    Figure{"eval", "loss", "dp_test_loss", "", 1, "Mean loss of the last evaluation."},
    Figure{"eval", "top1", "dp_test_accuracy_ratio", "top=\"1\"", kPercent, "Of the last evaluation."},
    Figure{"eval", "top5", "dp_test_accuracy_ratio", "top=\"5\"", kPercent, ""},
    Figure{"eval", "seconds", "dp_test_seconds", "", 1, "Seconds of the last evaluation."},
    Figure{"", "", "dp_skipped_steps_total", "", 1, "Steps of this process skipped because of NaN or infinity."},
    Figure{"", "", "dp_test_metric", "", 1, "Further figures of the last evaluation."},
    Figure{"", "", "dp_checkpoint_timestamp_seconds", "", 1, "When the last checkpoint was complete."}};

std::string label(const char* name, const std::string& text) {
  std::string escaped;
  for (const char c : text)
    escaped += c == '\n' ? "\\n" : c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return fmt::format("{}=\"{}\"", name, escaped);
}

std::string joined(const std::string& a, const std::string& b) { return a.empty() || b.empty() ? a + b : a + "," + b; }

std::string number(double value) {
  return std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : fmt::format("{}", value);
}

}  // namespace

PrometheusFile::PrometheusFile(const std::string& run_folder)
    : path_(run_folder + "/metrics.prom"),
      run_(label("run", std::filesystem::absolute(run_folder).lexically_normal().string())) {}

void PrometheusFile::set(const std::string& name, const std::string& labels, double value) {
  values_[name][joined(run_, labels)] = value;
}

void PrometheusFile::add(const nlohmann::ordered_json& record) {
  const std::string kind = record.value("kind", "");
  if (path_.empty() || (kind != "train" && kind != "eval")) return;
  const std::string weights = kind == "train"                  ? ""
                              : record.value("average", false) ? "weights=\"average\""
                                                               : "weights=\"trained\"";
  for (const auto& [field, value] : record.items()) {
    if (!value.is_number()) continue;
    const auto figure = std::ranges::find_if(kFigures, [&, name = std::string_view(field)](const Figure& each) {
      return each.kind == kind && each.field == name;
    });
    if (figure != kFigures.end())
      set(std::string(figure->name), joined(weights, std::string(figure->labels)), value.get<double>() / figure->unit);
    else if (kind == "eval" && field != "step" && field != "epoch")
      set("dp_test_metric", joined(weights, label("metric", field)), value.get<double>());
  }
  if (kind == "train") values_["dp_skipped_steps_total"][run_] += record.value("skipped", 0.0);
  write();
}

void PrometheusFile::saved(std::int64_t seconds) {
  if (path_.empty()) return;
  set("dp_checkpoint_timestamp_seconds", "", static_cast<double>(seconds));
  write();
}

void PrometheusFile::write() const {
  replace_file(
      path_, [this](FileWriter& file) { file.write(text()); }, /*sync=*/false);
}

std::string PrometheusFile::text() const {
  std::string all;
  for (const Figure& figure : kFigures) {
    const auto values = values_.find(std::string(figure.name));
    if (values == values_.end() || *figure.help == '\0') continue;
    all += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", figure.name, figure.help,
                       figure.name.ends_with("_total") ? "counter" : "gauge");
    for (const auto& [labels, value] : values->second)
      all += fmt::format("{}{{{}}} {}\n", figure.name, labels, number(value));
  }
  return all;
}

}  // namespace dp
