#include <algorithm>

#include "pipeline.h"
#include "report/statistics.h"

namespace dp_bench {
namespace {

// Published by others: the PyTorch tutorial "Single-Machine Model Parallel Best Practices".
struct PublishedSpeedUp {
  int split_size;
  double speed_up;
};
constexpr PublishedSpeedUp kPublishedSpeedUps[] = {{20, 1.49}, {12, 1.54}};
constexpr int kPublishedBatch = 120, kPublishedStages = 2;

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

}  // namespace dp_bench
