#include "pipeline.h"

#include <dp/error.h>
#include <dp/memory.h>
#include <dp/models.h>

#include <algorithm>

namespace dp_bench {
namespace {

// The split sizes of the published experiment. Its batch has 120 images.
constexpr std::int64_t kPublishedSizes[] = {1, 2, 4, 6, 8, 10, 12, 20, 30, 40, 60, 120};

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

Report measure_pipeline(const PipelineBench& asked, Progress progress) {
  const PipelineBench bench = resolved(asked);
  const std::vector<PipelineCase> cases = cases_of(bench);
  std::vector<VariantSpec> variants;
  for (const PipelineCase& one : cases) variants.push_back(variant_of(bench, one));
  return pipeline_report(bench, cases, measure_steps(bench.step, variants, progress));
}

}  // namespace dp_bench
