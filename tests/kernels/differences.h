// Central differences, for gradients in float64.
#pragma once

#include <functional>

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

}  // namespace dp::test
