// The weights of a split by measured speed.
#pragma once

#include <cstdint>
#include <vector>

#include "dp/statistics.h"

namespace dp::engine {

// Replicas whose speeds differ by less than this factor get equal shares: timings vary as much.
inline constexpr double kEqualSpeeds = 1.05;

// Weights in thousandths, proportional to the images per second of each replica. `times`: of steps on `rows` images
// with equal shares, per replica; forward and backward count.
std::vector<int> weights_of(const std::vector<PhaseTimes>& times, std::int64_t rows);

}  // namespace dp::engine
