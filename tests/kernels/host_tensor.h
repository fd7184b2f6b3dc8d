// Tensors of the op tests on the host: row-major doubles, random numbers, and how far two tensors lie apart.
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
// A shuffle of values that differ by at least 1/64 from each other and by 1/128 from zero, exact in float32: no ReLU and no
// maximum changes its mind under a small step.
HostTensor distinct_tensor(const Shape& shape, Random& random);
HostTensor zeros(const Shape& shape);

double norm(const std::vector<double>& values);
double dot(const HostTensor& a, const HostTensor& b);
// |actual - expected| / |expected| in L2; |actual| when `expected` is zero. Infinite when a NaN is involved or the shapes differ.
double relative_error(const HostTensor& actual, const HostTensor& expected);

}  // namespace dp::test
