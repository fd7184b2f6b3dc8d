#include "apps/dp_bench/report/statistics.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "support/catch.h"

using namespace dp_bench;

TEST_CASE("quantiles interpolate linearly, in any order of the values") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(quantile({4, 1, 3, 2}, 0.25) == 1.75);  // numpy.quantile([1, 2, 3, 4], .25)
  CHECK(quantile({4, 1, 3, 2}, 0) == 1);
  CHECK(quantile({4, 1, 3, 2}, 1) == 4);
  CHECK(quantile({7}, 0.75) == 7);
  CHECK(std::isnan(median({})));
  std::vector<double> values{4, 1, 3, 2, std::nan("")};
  values.pop_back();  // its memory still holds a NaN after the last value
  CHECK(quantile(std::move(values), 1) == 4);
}

TEST_CASE("the interval of the median has 95 % confidence") {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  CHECK(median_interval(values).low == 41);  // 40 below: binomial(100, 1/2) has 95 % between 40 and 60
  CHECK(median_interval(values).high == 60);
  CHECK(median_interval({5, 1, 3}).low == 1);
  CHECK(median_interval({5, 1, 3}).high == 5);
}

TEST_CASE("ratios are formed round by round") {
  CHECK(ratios({1, 2, 4}, {2, 2, 2}) == std::vector<double>{2, 1, 0.5});
  CHECK(ratios({1, 2}, {3}).size() == 1);
}
