#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dp_bench {

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

Interval median_interval(std::vector<double> values) {
  if (values.empty()) return {std::nan(""), std::nan("")};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const double skip = std::max(0.0, std::floor((count - 1.96 * std::sqrt(count)) / 2));
  const auto left_out = static_cast<std::size_t>(skip);
  return {values[left_out], values[values.size() - 1 - left_out]};
}

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) out.push_back(b[i] / a[i]);
  return out;
}

}  // namespace dp_bench
