#include "engine/train/record/records.h"

namespace dp {

void add(Stats& sum, const Stats& more) {
  sum.loss_sum += more.loss_sum;
  sum.samples += more.samples;
  sum.top1 += more.top1;
  sum.top5 += more.top5;
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
  json["top1"] = report.recent.accuracy1();
  json["top5"] = report.recent.accuracy5();
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
  json["top1"] = report.stats.accuracy1();
  json["top5"] = report.stats.accuracy5();
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

}  // namespace dp
