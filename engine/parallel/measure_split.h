// The weights of a split by measured speed.
#pragma once

#include <vector>

namespace dp::engine {

// Replicas whose speeds differ by less than this factor get equal shares: timings vary as much.
inline constexpr double kEqualSpeeds = 1.05;

// Weights in thousandths, proportional to the speeds (images per second of each replica alone).
std::vector<int> split_weights(const std::vector<double>& speeds);

}  // namespace dp::engine
