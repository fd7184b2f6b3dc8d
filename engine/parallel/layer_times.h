// What each piece of a traced step took, beside the least that it could have taken.
#pragma once

#include <vector>

#include "dp/statistics.h"
#include "engine/observe/tracer.h"
#include "engine/replica/replica.h"

namespace dp::engine {

// In the order in which a step reaches them. Empty where no step was traced.
std::vector<LayerTime> layer_times(const Replica& replica, const Tracer& tracer, const kernels::Rates& rates);

}  // namespace dp::engine
