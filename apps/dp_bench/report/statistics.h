// Medians and how far they can be trusted.
#pragma once

#include <vector>

namespace dp_bench {

// Linear between neighbours, as numpy's default; `share` from 0 to 1. NaN for no values.
double quantile(std::vector<double> values, double share);
double median(const std::vector<double>& values);

struct Interval {
  double low = 0, high = 0;
};
// Holds the true median in 95 of 100 cases, whatever the distribution; with fewer than six values the least and the greatest.
Interval median_interval(std::vector<double> values);

// b[i] / a[i], as far as both go.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace dp_bench
