#include "kernels/host_tensor.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace dp::test {

HostTensor random_tensor(const Shape& shape, Random& random) {
  HostTensor tensor = zeros(shape);
  for (double& value : tensor.values) value = random.uniform(-1.0f, 1.0f);
  return tensor;
}

HostTensor distinct_tensor(const Shape& shape, Random& random) {
  HostTensor tensor = zeros(shape);
  const std::size_t count = tensor.values.size();
  for (std::size_t i = 0; i < count; ++i)
    tensor.values[i] = (static_cast<double>(i) - static_cast<double>(count / 2) + 0.5) / 64;
  for (std::size_t i = count; i > 1; --i)
    std::swap(tensor.values[i - 1], tensor.values[random.below(static_cast<std::uint32_t>(i))]);
  return tensor;
}

HostTensor zeros(const Shape& shape) { return {shape, std::vector<double>(static_cast<std::size_t>(shape.numel()))}; }

double norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double dot(const HostTensor& a, const HostTensor& b) {
  return std::inner_product(a.values.begin(), a.values.end(), b.values.begin(), 0.0);
}

double relative_error(const HostTensor& actual, const HostTensor& expected) {
  if (actual.shape != expected.shape) return std::numeric_limits<double>::infinity();
  std::vector<double> difference(expected.values.size());
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] = actual.values[i] - expected.values[i];
  const double size = norm(expected.values);
  const double error = size > 0 ? norm(difference) / size : norm(difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace dp::test
