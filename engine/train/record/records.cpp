// Writes the lines of metrics.jsonl and metrics.csv, and summary.json.
#include "engine/train/record/records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "dp/trainer.h"
#include "engine/base/text.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {

void add(Stats& sum, const Stats& more) {
  sum.loss_sum += more.loss_sum;
  sum.samples += more.samples;
  sum.top1 += more.top1;
  sum.top5 += more.top5;
  sum.has_labels = more.has_labels;
  sum.skipped += more.skipped;
  if (more.samples > 0 || more.skipped > 0) sum.grad_norm = more.grad_norm;  // without a step there is no gradient
  sum.loss_scale = more.loss_scale;
}

void add(std::vector<PhaseTimes>& sum, const std::vector<PhaseTimes>& more) {
  if (sum.size() < more.size()) sum.resize(more.size());
  for (std::size_t replica = 0; replica < more.size(); ++replica)
    for (const Phase& phase : phases()) sum[replica].*phase.seconds += more[replica].*phase.seconds;
}

const std::vector<Phase>& phases() {
  static const std::vector<Phase> list{{"scatter", &PhaseTimes::scatter},   {"forward", &PhaseTimes::forward},
                                       {"backward", &PhaseTimes::backward}, {"reduce", &PhaseTimes::reduce},
                                       {"update", &PhaseTimes::update},     {"broadcast", &PhaseTimes::broadcast},
                                       {"graph", &PhaseTimes::graph},       {"waiting", &PhaseTimes::waiting}};
  return list;
}

nlohmann::ordered_json to_record(const StepReport& report) {
  nlohmann::ordered_json json;
  json["kind"] = "train";
  json["epoch"] = report.epoch;
  json["step"] = report.step;
  json["lr"] = report.lr;
  json["loss"] = report.recent.loss();
  if (report.recent.has_labels) {
    json["top1"] = report.recent.accuracy1();
    json["top5"] = report.recent.accuracy5();
  }
  json["images_per_second"] = report.images_per_second;
  json["loading_share"] = report.loading_share;
  json["seconds_train"] = report.seconds_train;
  if (report.recent.grad_norm > 0) json["grad_norm"] = report.recent.grad_norm;
  json["skipped"] = report.recent.skipped;
  if (report.recent.loss_scale) json["loss_scale"] = *report.recent.loss_scale;
  json["phases"] = nlohmann::ordered_json::array();
  for (const PhaseTimes& times : report.phases) {
    nlohmann::ordered_json replica;
    for (const Phase& phase : phases()) replica[phase.name] = times.*phase.seconds;
    json["phases"].push_back(replica);
  }
  return json;
}

nlohmann::ordered_json to_record(const EvalReport& report) {
  nlohmann::ordered_json json;
  json["kind"] = "eval";
  json["epoch"] = report.epoch;
  json["step"] = report.step;
  json["loss"] = report.stats.loss();
  if (report.stats.has_labels) {
    json["top1"] = report.stats.accuracy1();
    json["top5"] = report.stats.accuracy5();
  }
  for (const Metric& metric : report.metrics) json[metric.name] = metric.value;
  json["seconds"] = report.seconds;
  json["average"] = report.average;
  json["best"] = report.best;
  return json;
}

nlohmann::ordered_json to_record(const TrainState& resumed, const std::string& folder,
                                 const std::vector<ChangedOption>& changes,
                                 const std::map<std::string, std::string>& given_by) {
  nlohmann::ordered_json json;
  json["kind"] = "resumed";
  json["epoch"] = resumed.epoch;
  json["step"] = resumed.step;
  json["from"] = folder;
  json["changes"] = nlohmann::ordered_json::array();
  for (const ChangedOption& change : changes) {
    nlohmann::ordered_json one{{"option", change.name}, {"before", change.before}, {"now", change.now}};
    if (const auto origin = given_by.find(change.name); origin != given_by.end()) one["by"] = origin->second;
    json["changes"].push_back(one);
  }
  return json;
}

namespace {

constexpr std::array kColumns{
    "kind",          "epoch",     "step",    "lr",         "loss",    "top1",    "top5", "images_per_second",
    "loading_share", "grad_norm", "skipped", "loss_scale", "seconds", "average", "best", "mae",
    "rmse",          "r2",        "f1",      "map"};

std::string cell(const nlohmann::ordered_json& record, const std::string& column) {
  const auto at = record.find(column);
  if (at == record.end() || at->is_null()) return "";
  if (at->is_number_float() && !std::isfinite(at->get<double>())) return "";
  return at->is_string() ? at->get<std::string>() : at->dump();
}

}  // namespace

std::string csv_header(const OwnNames& own) {
  std::string line;
  for (const char* const column : kColumns) line += (line.empty() ? "" : ",") + std::string(column);
  for (const std::string& name : own) line += "," + csv_field(name);
  return line + "\n";
}

std::string csv_row(const nlohmann::ordered_json& record, const OwnNames& own) {
  const auto kind = record.find("kind");
  if (kind == record.end() || (*kind != "train" && *kind != "eval")) return "";
  std::string line;
  for (const char* const column : kColumns) line += (column == kColumns.front() ? "" : ",") + cell(record, column);
  for (const std::string& name : own) line += "," + cell(record, name);
  return line + "\n";
}

std::string csv_table(const std::string& metrics_jsonl, const OwnNames& own) {
  std::istringstream in(metrics_jsonl);
  std::string table = csv_header(own);
  for (std::string line; std::getline(in, line);)
    if (const auto record = parse_record<nlohmann::ordered_json>(line); record.is_object())
      table += csv_row(record, own);
  return table;
}

// summary.json.
std::string to_json(const RunSummary& summary) {
  nlohmann::ordered_json json;
  json["model"] = summary.model;
  json["dataset"] = summary.dataset;
  json["engine"] = summary.engine;
  json["devices"] = summary.devices;
  json["communicator"] = summary.communicator.what;
  json["communicator_reason"] = summary.communicator.reason;
  json["graphs"] = summary.graphs.what;
  json["graphs_reason"] = summary.graphs.reason;
  if (!summary.pipeline.empty()) json["pipeline"] = summary.pipeline;
  json["global_batch"] = summary.global_batch;
  json["epochs"] = summary.epochs;
  json["steps"] = summary.steps;
  json["skipped_steps"] = summary.skipped_steps;
  json["seconds_train"] = summary.seconds_train;
  json["images_per_second"] = summary.images_per_second;
  json["train_loss"] = summary.train_loss;
  json["test_loss"] = summary.test_loss;
  json["top1"] = summary.top1;
  json["top5"] = summary.top5;
  for (const Metric& metric : summary.metrics) json[metric.name] = metric.value;
  json["weights_sha256"] = summary.weights_sha256;
  json["checkpoint"] = summary.checkpoint;
  json["interrupted"] = summary.interrupted;
  json["end"] = summary.end;
  if (summary.bad_images) {
    constexpr std::size_t kListed = 100;
    json["bad_images"] = summary.bad_images->size();
    json["bad_image_list"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < std::min(summary.bad_images->size(), kListed); ++i)
      json["bad_image_list"].push_back((*summary.bad_images)[i]);
  }
  for (const LayerTime& layer : summary.layers)
    json["layers"].push_back({{"name", layer.name},
                              {"implementation", layer.implementation},
                              {"seconds", layer.seconds},
                              {"floor_seconds", layer.floor_seconds}});
  return json_line(json);
}

}  // namespace dp
