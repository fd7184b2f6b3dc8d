#include "compare.h"

#include "report/statistics.h"

namespace dp_bench {
namespace {

constexpr double kEpoch = 50000;
struct PublishedTime {
  const char* what;
  double seconds;
};
// Published by others: seconds per epoch of ResNet18 on CIFAR-100 on four RTX 2080 Ti.
constexpr PublishedTime kPublishedTimes[] = {{"DataParallel", 20},
                                             {"DataParallel + apex", 18},
                                             {"DistributedDataParallel", 16},
                                             {"DistributedDataParallel + apex", 14.5}};

Row absent_row(const std::string& what, const std::string& why) { return {{what}, Kind::absent, why, {}}; }

}  // namespace

Report compare_report(StepOptions options, Progress progress) {
  options.network = {"resnet18", {3, 32, 32}, 100};
  options = resolved(options);
  const bool gpu = !options.gpus.empty();
  const int n = options.replicas;
  const std::string count = " x" + std::to_string(n);
  const int threads_each = std::max(1, options.threads / n);
  std::vector<VariantSpec> variants{our_variant(options, "one", "one device", "dp", 1, threads_each, {})};
  for (const std::string engine : {"dp", "ddp"}) {
    variants.push_back(our_variant(options, engine, engine + count, engine, n, threads_each, {}));
    if (options.run.parallel.amp == dp::Amp::off)
      variants.push_back(
          our_variant(options, engine + "-amp", engine + count + " + AMP", engine, n, threads_each, {"--amp", "bf16"}));
  }
  const StepResult result = measure_steps(options, variants, progress);
  Section section{"compare", "Seconds per epoch of 50,000 images", "", {}, {}, Bars{1, 2, 3, true}};
  section.columns = {{"what", "what"},
                     {"seconds_per_epoch", "s/epoch", 1},
                     {"seconds_q1", "quartile", 1},
                     {"seconds_q3", "quartile", 1},
                     {"speed_up", "speed-up", 2},
                     {"mib_per_device", "MiB/device", 0},
                     {"ms_per_step", "ms/step", 1}};
  const double steps = kEpoch / static_cast<double>(options.run.batch_size);
  const double alone = median(result.variants.front().seconds_per_step);
  for (const Measured& one : result.variants) {
    if (one.seconds_per_step.empty()) {
      section.rows.push_back(absent_row(one.spec.title, one.note));
    } else {
      const double seconds = median(one.seconds_per_step);
      Row row;
      row.cells = {one.spec.title,
                   steps * seconds,
                   steps * quantile(one.seconds_per_step, 0.25),
                   steps * quantile(one.seconds_per_step, 0.75),
                   alone / seconds,
                   one.bytes_per_device / kMebi,
                   seconds * 1e3};
      row.samples = one.seconds_per_step;
      section.rows.push_back(row);
    }
  }
  for (const PublishedTime& published : kPublishedTimes) {
    Row row{{std::string(published.what) + " x4", published.seconds},
            Kind::published,
            "another machine, four RTX 2080 Ti, PyTorch",
            {}};
    section.rows.push_back(row);
  }
  section.text =
      "s/epoch: steps per epoch times the median step. Speed-up: relative to one device of the same kind with the same "
      "global batch. Image loading is not measured. Published figures are from another machine: compare their order, "
      "not their values.";
  Report report{"compare", "", {}, {}};
  report.title = "ResNet18 on images of CIFAR-100's shape, global batch " + std::to_string(options.run.batch_size) +
                 ", " +
                 (gpu ? "GPUs " + options.gpus
                      : std::to_string(n) + " CPU replicas, threads each: " + std::to_string(threads_each));
  report.facts = facts_of(result);
  report.sections.push_back(section);
  return report;
}

}  // namespace dp_bench
