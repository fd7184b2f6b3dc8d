// `dp_bench pipeline`: a model split over several devices, with every schedule and several sizes of micro-batches,
// compared with one device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/report.h"
#include "step.h"

namespace dp_bench {

struct PipelineBench {
  StepOptions step;  // `replicas`: devices, stages times replicas; run.parallel.pipeline: stages and cuts
  std::vector<std::string> schedules{"gpipe", "1f1b", "zb-h1"};  // as of --schedule
  std::vector<std::int64_t>
      split_sizes;          // rows of a micro-batch on a replica; empty: those of the published experiment
  bool accumulate = false;  // also measures one device with each number of micro-batches

  int stages() const { return step.run.parallel.pipeline.stages; }
  int replicas() const { return step.replicas / stages(); }
};

// One measured variant: how a batch is trained.
struct PipelineCase {
  std::string key, what;        // `what`: "single device", "model parallel", or the schedule
  std::string schedule;         // empty on one device
  int micro_batches = 1;        // of a step
  std::int64_t split_size = 0;  // images of the largest micro-batch on a replica
  bool has_split_size = true;   // false: always the whole batch at once
};

// Resolves all automatic choices. Throws dp::Error(usage) for impossible options, and if the model cannot be split as
// the options say.
PipelineBench resolved(PipelineBench bench);
// The first case is a single device. The second case has all stages and the whole batch at once. Then follow the
// schedules. Split sizes that give the same number of micro-batches are one case. `bench` must be resolved.
std::vector<PipelineCase> cases_of(const PipelineBench& bench);
VariantSpec variant_of(const PipelineBench& bench, const PipelineCase& one);
// `result` has one variant per case.
Report pipeline_report(const PipelineBench& bench, const std::vector<PipelineCase>& cases, const StepResult& result);
Report measure_pipeline(const PipelineBench& bench, Progress progress);

}  // namespace dp_bench
