// Distances between tensors. A non-finite value, another shape or a missing tensor counts as infinite distance.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dp/tensor.h"

namespace dp::test {

using NamedTensor = std::pair<std::string, Tensor>;

inline constexpr double kInfinitelyFar = std::numeric_limits<double>::infinity();

inline double finite_or_far(double error) { return std::isfinite(error) ? error : kInfinitelyFar; }
// std::max ignores a NaN in its second argument.
inline double larger_error(double a, double b) { return std::max(finite_or_far(a), finite_or_far(b)); }

inline double value_at(const Tensor& t, std::int64_t i) {
  if (t.dtype() == DType::i64) return static_cast<double>(t.data<std::int64_t>()[i]);
  return t.dtype() == DType::f64 ? t.data<double>()[i] : static_cast<double>(t.data<float>()[i]);
}

// ||a - b|| / ||b - origin|| over the tensor; a null origin is zero. If b equals the origin: ||a - b||.
inline double relative_error(const Tensor& a, const Tensor& b, const Tensor* origin = nullptr) {
  if (a.shape() != b.shape() || (origin != nullptr && origin->shape() != b.shape())) return kInfinitelyFar;
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < b.numel(); ++i) {
    const double d = value_at(a, i) - value_at(b, i), n = value_at(b, i) - (origin ? value_at(*origin, i) : 0.0);
    difference += d * d;
    norm += n * n;
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) return kInfinitelyFar;
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

struct Worst {
  double error = 0;
  std::string name;

  void take(double other, const std::string& of) {
    if (finite_or_far(other) > error) error = finite_or_far(other), name = of;
  }
};

// Whether both lists have the same names in the same order.
inline bool same_names(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const NamedTensor& x, const NamedTensor& y) { return x.first == y.first; });
}

inline Worst worst_error(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b,
                         const std::vector<NamedTensor>* origin = nullptr) {
  if (!same_names(a, b) || (origin != nullptr && !same_names(*origin, b))) return {kInfinitelyFar, "other tensors"};
  Worst worst;
  for (std::size_t i = 0; i < b.size(); ++i)
    worst.take(relative_error(a[i].second, b[i].second, origin ? &(*origin)[i].second : nullptr), b[i].first);
  return worst;
}

inline bool bit_equal(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  if (!same_names(a, b)) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Tensor &x = a[i].second, &y = b[i].second;
    if (x.shape() != y.shape() || x.dtype() != y.dtype()) return false;
    const auto* bytes = static_cast<const unsigned char*>(x.raw());
    if (!std::equal(bytes, bytes + x.bytes(), static_cast<const unsigned char*>(y.raw()))) return false;
  }
  return true;
}

}  // namespace dp::test
