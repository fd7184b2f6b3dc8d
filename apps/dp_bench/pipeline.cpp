#include "pipeline.h"

#include <dp/error.h>
#include <dp/memory.h>
#include <dp/models.h>

#include <algorithm>

namespace dp_bench {
namespace {

// Published by others: the PyTorch tutorial "Single-Machine Model Parallel Best Practices".
constexpr int kPublishedBatch = 120, kPublishedStages = 2;
constexpr std::int64_t kPublishedSizes[] = {1, 2, 4, 6, 8, 10, 12, 20, 30, 40, 60, 120};  // split sizes
struct PublishedSpeedUp {
  int split_size;
  double speed_up;
};
constexpr PublishedSpeedUp kPublishedSpeedUps[] = {{20, 1.49}, {12, 1.54}};

std::int64_t rounded_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t rows_of_replica(const PipelineBench& bench) {
  return rounded_up(bench.step.run.batch_size, bench.replicas());
}

std::vector<int> micro_batches_of(const PipelineBench& bench) {
  std::vector<int> counts;
  for (const std::int64_t size : bench.split_sizes)
    if (const auto count = static_cast<int>(rounded_up(rows_of_replica(bench), size));
        std::ranges::find(counts, count) == counts.end())
      counts.push_back(count);
  return counts;
}

// Throws dp::Error(usage) if the engine refuses the stages or the cuts.
void check_stages(const PipelineBench& bench) {
  const StepOptions& step = bench.step;
  dp::DataParallelOptions parallel = step.run.parallel;
  parallel.devices = dp::cpus(step.replicas);
  parallel.threads_per_replica = step.threads / step.replicas;
  parallel.pipeline.micro_batches = 1;
  const dp::Model model =
      dp::models::find(step.network.model).make(dp::Shape(step.network.input), step.network.classes);
  dp::estimate_memory(model, parallel, {step.run.batch_size});
}

}  // namespace

PipelineBench resolved(PipelineBench bench) {
  StepOptions& step = bench.step;
  const std::string stages = std::to_string(bench.stages());
  if (bench.stages() < 2)
    throw dp::Error(dp::ErrorCode::usage, "--pipeline-stages 1 is no pipeline; give 2 or more stages");
  if (step.replicas == 0) step.replicas = bench.stages();
  if (step.replicas % bench.stages() != 0)
    throw dp::Error(dp::ErrorCode::usage, "--cpu " + std::to_string(step.replicas) + " is not a multiple of the " +
                                              stages + " stages of a replica; give a multiple of --pipeline-stages");
  if (step.threads == 0) step.threads = step.replicas;
  step = resolved(step);
  const std::int64_t rows = rows_of_replica(bench);
  if (bench.split_sizes.empty()) {
    for (const std::int64_t size : kPublishedSizes)
      if (size < rows) bench.split_sizes.push_back(size);
    bench.split_sizes.push_back(rows);
  }
  for (const std::int64_t size : bench.split_sizes)
    if (size > rows)
      throw dp::Error(dp::ErrorCode::usage, "--split-sizes " + std::to_string(size) + " exceeds the " +
                                                std::to_string(rows) +
                                                " images of a replica; give smaller sizes or a larger batch (-b)");
  std::ranges::sort(bench.split_sizes);
  check_stages(bench);
  return bench;
}

std::vector<PipelineCase> cases_of(const PipelineBench& bench) {
  const auto split_size = [&](int replicas, int micro_batches) {
    return rounded_up(bench.step.run.batch_size, static_cast<std::int64_t>(replicas) * micro_batches);
  };
  std::vector<PipelineCase> cases{
      {"single", "single device", "", 1, split_size(1, 1), false},
      {"model-parallel", "model parallel", "none", 1, split_size(bench.replicas(), 1), false}};
  const std::vector<int> counts = micro_batches_of(bench);
  if (bench.accumulate)
    for (const int count : counts)
      if (count > 1)
        cases.push_back({"single-m" + std::to_string(count), "single, accumulated", "", count, split_size(1, count)});
  for (const std::string& schedule : bench.schedules)
    for (const int count : counts)
      cases.push_back(
          {schedule + "-m" + std::to_string(count), schedule, schedule, count, split_size(bench.replicas(), count)});
  return cases;
}

VariantSpec variant_of(const PipelineBench& bench, const PipelineCase& one) {
  const StepOptions& step = bench.step;
  const bool split = !one.schedule.empty();
  const int devices = split ? step.replicas : 1;
  std::vector<std::string> words{"--micro-batches", std::to_string(one.micro_batches)};
  if (split) words.insert(words.end(), {"--stages", std::to_string(bench.stages()), "--schedule", one.schedule});
  std::string cuts;
  for (const std::string& cut : step.run.parallel.pipeline.cuts) cuts += (cuts.empty() ? "" : ",") + cut;
  if (split && !cuts.empty()) words.insert(words.end(), {"--cuts", cuts});
  const std::string title = one.what + ", split size " + std::to_string(one.split_size);
  VariantSpec spec = our_variant(step, one.key, title, "dp", devices, step.threads / step.replicas, words);
  spec.accumulates = one.micro_batches > 1;
  return spec;
}

// The report.
namespace {

// The values of a field of the replies, one per round.
std::vector<double> values_of(const Measured& one, const std::string& field) {
  std::vector<double> values;
  for (const Reply& reply : one.replies) values.push_back(reply.number(field));
  return values;
}

// The figures of a measured case.
struct Figures {
  const PipelineCase* one;
  const Measured* measured;
  bool exists, pipelined;
  double bound;  // the speed-up that bubble and balance allow
};

Figures figures_of(const PipelineCase& one, const Measured& measured) {
  const double balance = median(values_of(measured, "balance"));
  // Where no two stages work at once, the balance does not matter.
  const bool overlaps = one.schedule != "none" && one.micro_batches > 1;
  const double share = (1 - measured.ready.number("bubble_formula")) * (overlaps ? balance : 1);
  return {&one, &measured, !measured.seconds_per_step.empty(), !one.schedule.empty(), measured.spec.devices * share};
}

std::vector<Cell> first_cells(const PipelineCase& one) {
  return {one.what, static_cast<double>(one.split_size), static_cast<double>(one.micro_batches)};
}

class Sections {
 public:
  Sections(const PipelineBench& bench, const std::vector<PipelineCase>& cases, const StepResult& result)
      : images_(static_cast<double>(bench.step.run.batch_size)), alone_(result.variants.front().seconds_per_step) {
    for (std::size_t i = 0; i < cases.size(); ++i) figures_.push_back(figures_of(cases[i], result.variants[i]));
  }

  Section measured() const {
    Section section{"pipeline", "Measured", "", {}, {}, {}, chart()};
    section.columns = {{"what", "schedule"},
                       {"split_size", "split size"},
                       {"micro_batches", "micro-batches"},
                       {"ms_per_step", "ms/step", 1},
                       {"ms_q1", "quartile", 1},
                       {"ms_q3", "quartile", 1},
                       {"images_per_second", "img/s", 1},
                       {"speed_up", "speed-up", 2},
                       {"speed_up_low", "from", 2},
                       {"speed_up_high", "to", 2},
                       {"percent_of_bound", "% of bound"},
                       {"bubble", "% bubble", 1},
                       {"bubble_formula", "by formula", 1},
                       {"balance", "% balance", 1},
                       {"mib_per_device", "MiB/device"}};
    for (const Figures& figures : figures_) section.rows.push_back(measured_row(figures));
    section.text =
        "Split size: images of a micro-batch on a replica. Speed-up: median of the ratios of each round to the single "
        "device, with its 95 % confidence interval. Bound: devices x (1 - bubble by formula) x balance; "
        "with few micro-batches an uneven split costs less than that, and a row can exceed 100 %. Bubble: idle "
        "share of the devices' time, measured, and by the formula for stages of equal time. Balance: computing time "
        "of the mean stage divided by that of the slowest. MiB/device: memory of the engine on the fullest device.";
    return section;
  }

  Section simulated() const {
    Section section{"simulated", "Simulated with the measured times of each stage", "", {}, {}, {}};
    section.columns = {{"what", "schedule"},
                       {"split_size", "split size"},
                       {"micro_batches", "micro-batches"},
                       {"ms_per_step", "ms/step", 1},
                       {"images_per_second", "img/s", 1},
                       {"speed_up", "speed-up", 2},
                       {"percent_of_bound", "% of bound"},
                       {"measured", "measured ms / simulated", 2}};
    for (const Figures& figures : figures_)
      if (figures.exists && figures.pipelined) section.rows.push_back(simulated_row(figures));
    section.text =
        "The schedule with the measured forward and backward times of each stage: stages wait only for each other's "
        "micro-batches.";
    return section;
  }

 private:
  Row measured_row(const Figures& figures) const {
    const Measured& measured = *figures.measured;
    Row row{first_cells(*figures.one), figures.exists ? Kind::measured : Kind::absent, measured.note,
            measured.seconds_per_step};
    if (!figures.exists) return row;
    const double seconds = median(measured.seconds_per_step);
    const std::vector<double> gains = ratios(measured.seconds_per_step, alone_);
    const Interval interval = median_interval(gains);
    const auto percent = [&](double share) { return figures.pipelined ? Cell(100 * share) : Cell(); };
    row.cells.insert(
        row.cells.end(),
        {1e3 * seconds, 1e3 * quantile(measured.seconds_per_step, 0.25),
         1e3 * quantile(measured.seconds_per_step, 0.75), images_ / seconds, median(gains), interval.low, interval.high,
         percent(median(gains) / figures.bound), percent(median(values_of(measured, "bubble"))),
         percent(measured.ready.number("bubble_formula")), percent(median(values_of(measured, "balance"))),
         median(values_of(measured, "device_bytes")) / kMebi});
    return row;
  }

  Row simulated_row(const Figures& figures) const {
    const std::vector<double> seconds = values_of(*figures.measured, "simulated_seconds");
    const double gain = median(ratios(seconds, alone_));
    Row row{first_cells(*figures.one), Kind::modelled, "", seconds};
    row.cells.insert(row.cells.end(),
                     {1e3 * median(seconds), images_ / median(seconds), gain, 100 * gain / figures.bound,
                      median(ratios(seconds, figures.measured->seconds_per_step))});
    return row;
  }

  // Images per second against the split size. Cases without a choice of the split size are horizontal lines.
  LineChart chart() const {
    LineChart chart{"split size: images of a micro-batch", "images per second", {}};
    std::vector<Line> simulated;
    for (const Figures& figures : figures_) {
      if (!figures.exists) continue;
      const auto x = static_cast<double>(figures.one->split_size);
      const bool level = !figures.one->has_split_size;
      if (chart.lines.empty() || chart.lines.back().label != figures.one->what) {
        const auto color = static_cast<int>(chart.lines.size());
        chart.lines.push_back({.label = figures.one->what, .points = {}, .color = color, .level = level});
        simulated.push_back({.label = "", .points = {}, .color = color, .dashed = true});
      }
      chart.lines.back().points.push_back({x, images_ / median(figures.measured->seconds_per_step)});
      if (figures.pipelined && !level)
        simulated.back().points.push_back({x, images_ / median(values_of(*figures.measured, "simulated_seconds"))});
    }
    chart.lines.insert(chart.lines.end(), simulated.begin(), simulated.end());
    chart.lines.push_back({.label = "simulated", .points = {}, .dashed = true});
    return chart;
  }

  const double images_;
  const std::vector<double>& alone_;
  std::vector<Figures> figures_;
};

Section published_section() {
  Section section{"published", "Published: ResNet50 on two GPUs, batch " + std::to_string(kPublishedBatch), "", {}, {},
                  {}};
  section.columns = {
      {"what", "program"},         {"split_size", "split size"},       {"micro_batches", "micro-batches"},
      {"speed_up", "speed-up", 2}, {"percent_of_bound", "% of bound"}, {"bubble_formula", "% bubble by formula", 1}};
  for (const PublishedSpeedUp& published : kPublishedSpeedUps) {
    const int count = kPublishedBatch / published.split_size;
    const double bubble = static_cast<double>(kPublishedStages - 1) / (count + kPublishedStages - 1);
    Row row{{"PyTorch", static_cast<double>(published.split_size), static_cast<double>(count), published.speed_up,
             100 * published.speed_up / (kPublishedStages * (1 - bubble)), 100 * bubble},
            Kind::published,
            "another machine",
            {}};
    section.rows.push_back(row);
  }
  section.text =
      "From the PyTorch tutorial \"Single-Machine Model Parallel Best Practices\"; not measured here. The bound "
      "assumes "
      "stages of equal time. Compare the per cent of the bound, not the speed-up.";
  return section;
}

std::string title_of(const PipelineBench& bench) {
  const StepOptions& step = bench.step;
  const int threads = step.threads / step.replicas;
  const std::string replicas = bench.replicas() > 1 ? std::to_string(bench.replicas()) + " replicas of " : "";
  return step.network.model + " on " + shape_text(step.network.input, "x") + ", " +
         std::to_string(step.network.classes) + " classes, batch " + std::to_string(step.run.batch_size) + ", " +
         replicas + std::to_string(bench.stages()) + " stages, " + std::to_string(threads) +
         (threads == 1 ? " CPU thread" : " CPU threads") + " per stage";
}

}  // namespace

Report pipeline_report(const PipelineBench& bench, const std::vector<PipelineCase>& cases, const StepResult& result) {
  Report report{"pipeline", title_of(bench), facts_of(result), {}};
  for (const Measured& measured : result.variants)
    if (const std::string stages = measured.ready.text("stages"); !stages.empty()) {
      report.facts.emplace_back("stages", stages);
      break;
    }
  const Sections sections(bench, cases, result);
  report.sections.push_back(sections.measured());
  if (Section simulated = sections.simulated(); !simulated.rows.empty())
    report.sections.push_back(std::move(simulated));
  report.sections.push_back(published_section());
  return report;
}

Report measure_pipeline(const PipelineBench& asked, Progress progress) {
  const PipelineBench bench = resolved(asked);
  const std::vector<PipelineCase> cases = cases_of(bench);
  std::vector<VariantSpec> variants;
  for (const PipelineCase& one : cases) variants.push_back(variant_of(bench, one));
  return pipeline_report(bench, cases, measure_steps(bench.step, variants, progress));
}

}  // namespace dp_bench
