// Figures of a pipelined training step, from the measured phases of its stages.
#pragma once

#include <span>

#include "dp/parallel_options.h"
#include "dp/statistics.h"

namespace dp::benchmarks {

struct PipelineFigures {
  double bubble = 0;     // idle share of the devices' time, from 0 to 1
  double balance = 0;    // computing time of the mean stage divided by that of the slowest, from 0 to 1
  double simulated = 0;  // seconds per step of the schedule, simulated with the measured times of each stage
};
// `times`: of `steps` steps that took `seconds`, one entry per device; stage s of replica r is number r * stages + s.
// The simulation halves the time of backward work between input and weight gradients, which is not measured. It adds
// the work outside forward and backward passes at the end of each stage.
PipelineFigures pipeline_figures(const PipelineOptions& pipeline, std::span<const PhaseTimes> times, int steps,
                                 double seconds);

// The idle share of the devices' time that the schedule implies for stages of equal time.
double bubble_of(const PipelineOptions& pipeline);

}  // namespace dp::benchmarks
