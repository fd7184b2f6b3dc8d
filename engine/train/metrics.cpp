#include "engine/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "dp/error.h"
#include "dp/named_entries.h"
#include "dp/process_group.h"
#include "dp/trainer.h"
#include "engine/base/loss_kind.h"
#include "engine/train/record/records.h"

namespace dp {
namespace {

double output_at(const Tensor& outputs, std::int64_t i) {
  return outputs.dtype() == DType::f64 ? outputs.data<double>()[i] : static_cast<double>(outputs.data<float>()[i]);
}

bool is_positive(double target) { return target > 0.5; }

// Of one output, over the samples.
struct Sums {
  double samples = 0, absolute = 0, square = 0, target = 0, target_square = 0;
  double hits = 0, predicted = 0, positive = 0;  // decisions: both, found positive, positive in truth

  void add(double output, double of_target) {
    const double away = output - of_target;
    samples += 1, absolute += std::abs(away), square += away * away;
    target += of_target, target_square += of_target * of_target;
    hits += output > 0 && is_positive(of_target), predicted += output > 0, positive += is_positive(of_target);
  }
  void add(const Sums& more) {
    samples += more.samples, absolute += more.absolute, square += more.square;
    target += more.target, target_square += more.target_square;
    hits += more.hits, predicted += more.predicted, positive += more.positive;
  }
};

std::vector<Sums> sums_of(const EvaluatedLogits& evaluated) {
  if (evaluated.targets.empty()) return {};
  const std::int64_t outputs = evaluated.targets.shape()[1];
  std::vector<Sums> sums(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < evaluated.targets.numel(); ++i)
    sums[static_cast<std::size_t>(i % outputs)].add(output_at(evaluated.logits, i),
                                                    static_cast<double>(evaluated.targets.data<float>()[i]));
  return sums;
}

// The bytes of all ranks, in rank order.
std::string of_all_ranks(const void* own, std::size_t size, ProcessGroup& group) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 16;  // the most that an exchange takes
  const std::string_view bytes(static_cast<const char*>(own), size);
  std::vector<std::string> ranks;
  for (std::size_t begin = 0, fullest = kAtOnce; fullest == kAtOnce; begin += kAtOnce) {
    const auto parts = group.exchange(bytes.substr(std::min(begin, size), kAtOnce));
    ranks.resize(parts.size());
    fullest = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ranks[i] += parts[i];
      fullest = std::max(fullest, parts[i].size());
    }
  }
  return std::accumulate(ranks.begin(), ranks.end(), std::string());
}

// The area under the curve of precision over recall, as a sum over the thresholds at which recall grows. Samples with
// equal outputs share a threshold. None without a positive target.
std::optional<double> average_precision(const EvaluatedLogits& evaluated, std::int64_t output) {
  const std::int64_t samples = evaluated.targets.shape()[0], outputs = evaluated.targets.shape()[1];
  const auto score = [&](std::int64_t n) { return output_at(evaluated.logits, n * outputs + output); };
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) { return score(a) > score(b); });
  double hits = 0, recalled = 0, area = 0;  // area: not yet divided by the number of positive targets
  for (std::size_t i = 0; i < order.size(); ++i) {
    hits += is_positive(static_cast<double>(evaluated.targets.data<float>()[order[i] * outputs + output]));
    if (i + 1 < order.size() && score(order[i + 1]) == score(order[i])) continue;
    area += (hits - recalled) * hits / static_cast<double>(i + 1);
    recalled = hits;
  }
  return hits > 0 ? std::optional(area / hits) : std::nullopt;
}

// The mean of what is there.
class Mean {
 public:
  void add(double value) { sum_ += value, ++count_; }
  std::optional<double> value() const { return count_ > 0 ? std::optional(sum_ / count_) : std::nullopt; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

}  // namespace

EvaluatedLogits of_all_ranks(const EvaluatedLogits& own, std::int64_t outputs, ProcessGroup& group) {
  EvaluatedLogits all;
  const auto numbers = [&](const auto& from, auto& to) {
    const std::string bytes = of_all_ranks(from.data(), from.size() * sizeof(from[0]), group);
    to.resize(bytes.size() / sizeof(from[0]));
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  };
  numbers(own.samples, all.samples);
  numbers(own.labels, all.labels);
  const auto tensor = [&](const Tensor& from, Tensor& to) {
    const std::string bytes = of_all_ranks(from.raw(), from.bytes(), group);
    if (bytes.empty()) return;
    const Shape shape{static_cast<std::int64_t>(all.samples.size()), outputs};
    const bool doubles = bytes.size() == static_cast<std::size_t>(shape.numel()) * sizeof(double);
    to = Tensor(shape, doubles ? DType::f64 : DType::f32);  // a rank without samples does not know the type
    std::memcpy(to.raw(), bytes.data(), bytes.size());
  };
  tensor(own.logits, all.logits);
  tensor(own.targets, all.targets);
  return all;
}

std::vector<Metric> metrics_of(const EvaluatedLogits& evaluated, const OutputLoss& loss) {
  const std::vector<Sums> sums = sums_of(evaluated);
  std::vector<Metric> metrics;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) metrics.push_back({name, Stats::plain(*value)});
  };
  Sums all;
  for (const Sums& one : sums) all.add(one);
  if (sums.empty()) return metrics;
  if (is_of_one_class(loss)) return metrics;  // the accuracies of Stats
  if (is_of_classes(loss)) {
    if (all.positive > 0) add("f1", 2 * all.hits / (all.predicted + all.positive));
    Mean precision;
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (const auto one = average_precision(evaluated, static_cast<std::int64_t>(i))) precision.add(*one);
    add("map", precision.value());
    return metrics;
  }
  add("mae", all.absolute / all.samples);
  add("rmse", std::sqrt(all.square / all.samples));
  Mean determination;
  for (const Sums& one : sums) {
    const double spread = one.target_square - one.target * one.target / one.samples;
    if (spread > 1e-12 * one.target_square) determination.add(1 - one.square / spread);
  }
  add("r2", determination.value());
  return metrics;
}

void check_metric(const OwnMetric& metric) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::usage, "metric '" + metric.name + "' cannot be added; " + why);
  };
  if (!metric.function) refuse("it has no function");
  // Fields of summary.json, and of the lines of metrics.jsonl beside those of an evaluation.
  static const std::set<std::string> kFields = [] {
    std::set<std::string> fields{
        "kind",     "lr",         "loss_scale",     "loading_share", "grad_norm", "skipped", "phases",
        "pipeline", "bad_images", "bad_image_list", "layers",        "mae",       "rmse",    "r2",
        "f1",       "map",        "images"};
    const auto summary = nlohmann::json::parse(to_json(RunSummary()));
    for (const auto& [name, value] : summary.items()) fields.insert(name);
    const nlohmann::ordered_json evaluation = to_record(EvalReport());
    for (const auto& [name, value] : evaluation.items()) fields.insert(name);
    return fields;
  }();
  if (kFields.contains(metric.name)) refuse("records have a field of this name");
}

namespace metrics {
namespace {

std::vector<OwnMetric>& entries() {
  static std::vector<OwnMetric> all;
  return all;
}

}  // namespace

const std::vector<OwnMetric>& registry() { return entries(); }
void add(OwnMetric metric) {
  check_metric(metric);
  add_entry(entries(), std::move(metric), "metric");
}

}  // namespace metrics

}  // namespace dp
