// The weights of a split by measured speed.
#pragma once

#include <cstdint>
#include <vector>

#include "dp/statistics.h"

namespace dp::engine {

// If the fastest replica is less than this factor faster than the slowest, all get equal shares. Repeated timings of
// one device vary by about as much.
inline constexpr double kEqualSpeeds = 1.05;

// Weights in thousandths, proportional to the images per second of each replica. `times`: the phase times of each
// replica in steps on `rows` images with equal shares. Only forward and backward count.
std::vector<int> weights_of(const std::vector<PhaseTimes>& times, std::int64_t rows);

}  // namespace dp::engine
