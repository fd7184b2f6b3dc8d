#include "benchmarks/programs/pipeline_figures.h"

#include <algorithm>
#include <vector>

#include "engine/step/pipeline/schedule.h"

namespace dp::benchmarks {

PipelineFigures pipeline_figures(const PipelineOptions& pipeline, std::span<const PhaseTimes> times, int steps,
                                 double seconds) {
  const auto stages = static_cast<std::size_t>(pipeline.stages);
  const double replicas = static_cast<double>(times.size()) / static_cast<double>(stages);
  const double micro_batches = replicas * steps * pipeline.micro_batches;
  std::vector<engine::StageSeconds> per_micro_batch(stages);
  std::vector<double> computing(stages), others(stages);
  double working = 0;
  for (std::size_t device = 0; device < times.size(); ++device) {
    const PhaseTimes& own = times[device];
    const std::size_t stage = device % stages;
    const double other = own.scatter + own.reduce + own.update + own.broadcast;
    per_micro_batch[stage].forward += own.forward / micro_batches;
    per_micro_batch[stage].input_gradient += own.backward / 2 / micro_batches;
    per_micro_batch[stage].weight_gradient += own.backward / 2 / micro_batches;
    computing[stage] += own.forward + own.backward;
    others[stage] += other / (replicas * steps);
    working += own.forward + own.backward + other;
  }
  double all = 0;
  for (const double stage : computing) all += stage;
  PipelineFigures figures;
  figures.bubble = std::max(0.0, 1 - working / (static_cast<double>(times.size()) * seconds));
  figures.balance = all / static_cast<double>(stages) / *std::ranges::max_element(computing);
  const std::vector<double> finished =
      engine::simulate(pipeline.schedule, per_micro_batch, pipeline.micro_batches, /*hand_over=*/0).finished;
  for (std::size_t stage = 0; stage < stages; ++stage)
    figures.simulated = std::max(figures.simulated, finished[stage] + others[stage]);
  return figures;
}

double bubble_of(const PipelineOptions& pipeline) {
  const std::vector<engine::StageSeconds> equal(static_cast<std::size_t>(pipeline.stages), {1, 1, 1});
  return engine::simulate(pipeline.schedule, equal, pipeline.micro_batches, /*hand_over=*/0).bubble;
}

}  // namespace dp::benchmarks
