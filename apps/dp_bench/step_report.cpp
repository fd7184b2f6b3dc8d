// The reports of `step` and `scaling`.
#include <algorithm>

#include "step.h"

namespace dp_bench {
namespace {

constexpr double kQuietCores = 0.05;  // figures are noise if other processes use more
constexpr double kEpoch = 50000;      // CIFAR's training images

const Measured* find(const StepResult& result, const std::string& key) {
  for (const Measured& one : result.variants)
    if (one.spec.key == key && !one.seconds_per_step.empty()) return &one;
  return nullptr;
}

const Measured* fastest(const StepResult& result, const std::vector<std::string>& keys) {
  const Measured* best = nullptr;
  for (const std::string& key : keys)
    if (const Measured* one = find(result, key))
      if (best == nullptr || median(one->seconds_per_step) < median(best->seconds_per_step)) best = one;
  return best;
}

Section variants_section(const StepResult& result) {
  Section section{"variants",         result.options.inference ? "Evaluations" : "Training steps", "", {}, {},
                  Bars{1, 2, 3, true}};
  section.columns = {{"variant", "variant"},
                     {"ms_per_step", "ms/step", 2},
                     {"ms_q1", "quartile", 2},
                     {"ms_q3", "quartile", 2},
                     {"ms_min", "min", 2},
                     {"ms_max", "max", 2},
                     {"images_per_second", "img/s", 0},
                     {"mib_per_device", "MiB/device", 0},
                     {"mb_sent", "MB sent/step", 2},
                     {"mb_sent_by_one", "by busiest", 2},
                     {"key", "key"}};
  for (const Measured& one : result.variants) {
    Row row;
    row.note = one.note;
    if (one.seconds_per_step.empty()) {
      row.kind = Kind::absent;
      row.cells.assign(section.columns.size(), {});
    } else {
      std::vector<double> ms;
      for (const double seconds : one.seconds_per_step) ms.push_back(seconds * 1e3);
      const std::string reduce = one.spec.group == "dp" ? one.reduce : "allreduce";
      row.cells = {Cell(),
                   median(ms),
                   quantile(ms, 0.25),
                   quantile(ms, 0.75),
                   quantile(ms, 0),
                   quantile(ms, 1),
                   static_cast<double>(result.options.run.batch_size) * 1e3 / median(ms),
                   one.bytes_per_device / kMebi,
                   bytes_sent(one.parameter_bytes, one.spec.devices) / 1e6,
                   bytes_sent_by_one(one.parameter_bytes, one.spec.devices, reduce) / 1e6,
                   Cell()};
      row.samples = one.seconds_per_step;
    }
    row.cells.front() = one.spec.title;
    row.cells.back() = one.spec.key;
    section.rows.push_back(row);
  }
  section.text =
      "ms/step: median of the rounds, with quartiles, minimum and maximum. MiB/device: peak resident memory per "
      "device, "
      "including the inputs of all steps. MB sent/step: bytes that all devices, and the busiest one, send in theory; "
      "not measured.";
  return section;
}

struct Question {
  std::vector<std::string> ours, theirs;
  double goal = 0;  // of theirs / ours
};

// Whether the goal is met. If the goal is inside the interval, the median decides and the text says so.
std::string verdict(double ratio, const Interval& interval, double goal) {
  const std::string word = ratio >= goal ? "yes" : "no";
  const bool certain = interval.low >= goal || interval.high < goal;
  return certain ? word : word + ", by the median";
}

// Time ratios theirs / ours. A goal of 0.99 allows ours to be 1 % slower.
Section ratios_section(const StepResult& result) {
  const bool gpu = !result.options.gpus.empty();
  const std::vector<std::string> torch{"torch", "torch-cl"}, torch_ddp{"torch-ddp", "torch-ddp-cl"};
  const std::vector<Question> questions{{{"dp1"}, {"plan"}, 1 / 1.01},
                                        {{"dp-sharded"}, {"dp1"}, 1 / 1.05},
                                        {{"dp-sharded"}, {"ddp"}, 1},
                                        {{"dp-virtual"}, {"dp1"}, 1 / 1.07},
                                        {{"dp1"}, torch, gpu ? 1.4 : 1.3},
                                        {{"dp1"}, {"torch-compiled"}, gpu ? 1.1 : 1},
                                        {{"dp-sharded"}, {"torch-dp"}, 1.15},
                                        {{"dp-sharded"}, torch_ddp, 1.15},
                                        {{"ddp"}, torch_ddp, 1.15},
                                        {{"dp"}, {"dp1"}, 1},
                                        {{"dp"}, torch, 1.3}};
  Section section{"ratios", "Time ratios", "", {}, {}, {}};
  section.columns = {{"ratio_of", "ratio of"}, {"ratio", "ratio", 3}, {"low", "from", 3}, {"high", "to", 3}};
  if (result.options.goals)
    section.columns.insert(section.columns.end(), {{"goal", "goal: at least", 3}, {"met", "met"}});
  for (const Question& question : questions) {
    const Measured *ours = fastest(result, question.ours), *theirs = fastest(result, question.theirs);
    if (ours == nullptr || theirs == nullptr) continue;
    const std::vector<double> pairs = ratios(ours->seconds_per_step, theirs->seconds_per_step);
    const Interval interval = median_interval(pairs);
    Row row;
    row.cells = {theirs->spec.title + " / " + ours->spec.title, median(pairs), interval.low, interval.high};
    if (result.options.goals)
      row.cells.insert(row.cells.end(), {Cell(question.goal), Cell(verdict(median(pairs), interval, question.goal))});
    row.samples = pairs;
    section.rows.push_back(row);
  }
  section.text =
      "Median of the ratios of each round, with its 95 % confidence interval. Of several memory formats of PyTorch, "
      "the "
      "fastest is used.";
  return section;
}

Section scaling_section(const StepResult& result) {
  Section section{"measured", "Measured: one CPU thread per device", "", {}, {}, Bars{2, 3, 4, true}};
  if (!result.options.gpus.empty()) section.title = "Measured: GPUs";
  section.columns = {{"what", "what"},
                     {"devices", "devices", 0},
                     {"ms_per_step", "ms/step", 2},
                     {"ms_q1", "quartile", 2},
                     {"ms_q3", "quartile", 2},
                     {"speed_up", "speed-up", 2},
                     {"efficiency", "% of ideal", 0},
                     {"images_per_second", "img/s", 0},
                     {"seconds_per_epoch", "s/50k images", 2}};
  const auto images = static_cast<double>(result.options.run.batch_size);
  const double alone = median(result.variants.front().seconds_per_step);
  for (const Measured& one : result.variants) {
    const double devices = one.spec.devices;
    Row row{{one.spec.title, devices}, Kind::measured, one.note, one.seconds_per_step};
    if (one.seconds_per_step.empty()) {
      row.kind = Kind::absent;
    } else {
      const double seconds = median(one.seconds_per_step), gain = alone / seconds;
      row.cells.insert(row.cells.end(), {seconds * 1e3, quantile(one.seconds_per_step, 0.25) * 1e3,
                                         quantile(one.seconds_per_step, 0.75) * 1e3, gain, 100 * gain / devices,
                                         images / seconds, kEpoch / images * seconds});
    }
    section.rows.push_back(row);
  }
  section.text = "Same global batch for every number of devices. Reduction: sharded in dp, all-reduce in ddp.";
  return section;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> facts_of(const StepResult& result) {
  const StepOptions& o = result.options;
  std::vector<std::pair<std::string, std::string>> facts{
      {"rounds", std::to_string(o.rounds) + ", interleaved: one slice per variant"},
      {"slice", o.steps ? std::to_string(o.steps) + " steps" : "about " + shown(Cell(o.seconds), 2) + " s"},
      {"batches", std::to_string(o.batches) + " distinct, used cyclically"}};
  facts.insert(facts.end(), result.facts.begin(), result.facts.end());
  for (const auto& [key, value] : result.facts)
    if (key == "others_cores" && std::stod(value) > kQuietCores)
      facts.emplace_back(kWarning, "other processes used " + value + " cores: the results are not reliable");
  return facts;
}

Report step_report(const StepResult& result) {
  const StepOptions& o = result.options;
  Report report{"step", "", {}, {}};
  const std::string where =
      o.gpus.empty() ? std::to_string(o.replicas) + (o.replicas == 1 ? " CPU replica, " : " CPU replicas, ") +
                           std::to_string(o.threads) + (o.threads == 1 ? " thread" : " threads") + " in total"
                     : "GPUs " + o.gpus;
  report.title = o.network.model + " on " + shape_text(o.network.input, "x") + ", " +
                 std::to_string(o.network.classes) + " classes, batch " + std::to_string(o.run.batch_size) +
                 (o.inference ? ", evaluation, " : ", ") + where;
  report.facts = facts_of(result);
  report.sections.push_back(variants_section(result));
  if (Section section = ratios_section(result); !section.rows.empty()) report.sections.push_back(std::move(section));
  return report;
}

Report measure_scaling(const StepOptions& asked, Progress progress) {
  const StepOptions options = resolved(asked);
  std::vector<VariantSpec> variants;
  for (const std::string engine : {"dp", "ddp"})
    for (int n = engine == "dp" ? 1 : 2; n <= options.replicas; ++n)
      variants.push_back(our_variant(options, engine + std::to_string(n), engine + " x" + std::to_string(n), engine, n,
                                     /*threads_each=*/1, {}));
  const StepResult result = measure_steps(options, variants, progress);
  Report report{"scaling", "", facts_of(result), {scaling_section(result)}};
  report.title = "Scaling of " + options.network.model + " on " + shape_text(options.network.input, "x") +
                 ", global batch " + std::to_string(options.run.batch_size);
  return report;
}

}  // namespace dp_bench
