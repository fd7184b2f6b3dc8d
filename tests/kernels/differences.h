// Central differences, for gradients in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/host_tensor.h"

namespace dp::test {

// For functions that are linear within the step, the error is rounding over step, 1e-16 / 1e-4, plus a margin for sums.
inline constexpr double kDifferenceStep = 1e-4;

inline HostTensor difference_quotients(HostTensor& at, const std::function<double()>& loss,
                                       double step = kDifferenceStep) {
  HostTensor gradient = zeros(at.shape);
  for (std::size_t i = 0; i < at.values.size(); ++i) {
    const double value = at.values[i];
    at.values[i] = value + step;
    const double above = loss();
    at.values[i] = value - step;
    gradient.values[i] = (above - loss()) / (2 * step);
    at.values[i] = value;
  }
  return gradient;
}

// The least absolute value.
inline double distance_from_zero(const HostTensor& tensor) {
  double smallest = std::numeric_limits<double>::infinity();
  for (const double value : tensor.values) smallest = std::min(smallest, std::abs(value));
  return smallest;
}

}  // namespace dp::test
