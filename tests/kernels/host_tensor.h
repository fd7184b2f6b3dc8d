// Host tensors for the op tests: row-major doubles, random values, and relative errors.
#pragma once

#include <vector>

#include "dp/random.h"
#include "dp/shape.h"

namespace dp::test {

struct HostTensor {
  Shape shape;
  std::vector<double> values;
};

// Uniform in [-1, 1), exact in float32.
HostTensor random_tensor(const Shape& shape, Random& random);
// Shuffled values that differ by at least 1/64 from each other and by 1/128 from zero, exact in float32. So a small
// step changes the result of no ReLU and no maximum.
HostTensor distinct_tensor(const Shape& shape, Random& random);
HostTensor zeros(const Shape& shape);

double norm(const std::vector<double>& values);
double dot(const HostTensor& a, const HostTensor& b);
// |actual - expected| / |expected| in L2; |actual| if `expected` is zero. Infinite for NaN or different shapes.
double relative_error(const HostTensor& actual, const HostTensor& expected);

}  // namespace dp::test
