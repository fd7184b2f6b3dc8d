// Time of each layer in the traced steps, with its lower bound.
#pragma once

#include <vector>

#include "dp/statistics.h"
#include "engine/observe/tracer.h"
#include "engine/step/plan_runner.h"

namespace dp::engine {

// In the order of execution. Empty if no step was traced.
std::vector<LayerTime> layer_times(const PlanRunner& runner, const Tracer& tracer, const kernels::Rates& rates);

}  // namespace dp::engine
