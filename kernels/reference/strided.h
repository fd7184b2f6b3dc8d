// The two innermost loops of the convolutions: over the cells of one row, with a step.
#pragma once

#include <cstdint>

namespace dp::kernels::reference {

inline void add_scaled(double* to, std::int64_t to_step, const double* from, std::int64_t from_step, double factor,
                       std::int64_t count) {
  if (to_step == 1 && from_step == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
  else
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] += factor * from[i * from_step];
}

inline double dot(const double* a, const double* b, std::int64_t b_step, std::int64_t count) {
  double sum = 0;
  if (b_step == 1) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i * b_step];
  }
  return sum;
}

}  // namespace dp::kernels::reference
