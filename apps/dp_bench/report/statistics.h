// Quantiles, and confidence intervals of medians.
#pragma once

#include <vector>

namespace dp_bench {

// Interpolates linearly, like numpy's default. `share` is from 0 to 1. NaN for no values.
double quantile(std::vector<double> values, double share);
double median(const std::vector<double>& values);

struct Interval {
  double low = 0, high = 0;
};
// Contains the true median in about 95 % of cases, for any distribution. For fewer than eight values: the least and the
// greatest. For fewer than six the confidence is lower.
Interval median_interval(std::vector<double> values);

// b[i] / a[i], up to the shorter length.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace dp_bench
