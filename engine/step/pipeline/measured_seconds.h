// Measures the time of a part of a model. Pipelines use it to choose stages of equal time.
#pragma once

#include "engine/step/model_setup.h"

namespace dp::engine {

// Rows of the measured passes.
inline constexpr std::int64_t kMeasuredRows = 8;

// Returns the seconds of one forward and one backward pass of `part` on a context that `open` returns. `plan` is a
// training plan of the part with kMeasuredRows rows for the same kind of device. Weights and inputs are zero.
double measured_seconds(const ModelSetup& setup, const Model& part, const Plan& plan, const OpenContext& open);

}  // namespace dp::engine
