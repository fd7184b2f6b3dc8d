// Measures the distance between the weights after training steps and the expected ones.
#pragma once

#include <cmath>
#include <vector>

#include "support/tensor_errors.h"

namespace dp::test {

// The L2 distance of `got` and `expected` over all tensors, relative to the distance of `expected` from `origin`.
inline double relative_distance(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& expected,
                                const std::vector<NamedTensor>& origin) {
  if (!same_names(got, expected) || !same_names(origin, expected)) return kInfinitelyFar;
  double difference = 0, moved = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::int64_t at = 0; at < expected[i].second.numel(); ++at) {
      const double there = value_at(expected[i].second, at);
      const double d = value_at(got[i].second, at) - there, w = there - value_at(origin[i].second, at);
      difference += d * d, moved += w * w;
    }
  return finite_or_far(std::sqrt(difference / moved));
}

}  // namespace dp::test
