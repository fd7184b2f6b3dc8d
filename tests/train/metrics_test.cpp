// The figures of an evaluation with targets, on values whose results are known.
#include "engine/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "support/catch.h"

using namespace dp;

namespace {

EvaluatedLogits evaluated(const Shape& shape, const std::vector<float>& outputs, const std::vector<float>& targets) {
  EvaluatedLogits made;
  made.logits = Tensor(shape), made.targets = Tensor(shape);
  std::ranges::copy(outputs, made.logits.data<float>());
  std::ranges::copy(targets, made.targets.data<float>());
  return made;
}

std::map<std::string, double> figures(const EvaluatedLogits& of, const OutputLoss& loss) {
  std::map<std::string, double> all;
  for (const Metric& metric : metrics_of(of, loss)) all[metric.name] = metric.value;
  return all;
}

}  // namespace

TEST_CASE("regression has the mean absolute error, the root of the mean square error, and R2 over the outputs") {
  // Errors 1, -1, 0, 2 and 0, 0, 0, 4. Squares 6 of a spread of 20, and 16 of 20.
  const auto found = figures(evaluated({4, 2}, {1, 1, 1, 3, 4, 5, 8, 11}, {0, 1, 2, 3, 4, 5, 6, 7}), MseLoss{});
  CHECK(found.size() == 3);
  CHECK(found.at("mae") == Approx(1.0));
  CHECK(found.at("rmse") == Approx(std::sqrt(22.0 / 8)));
  CHECK(found.at("r2") == Approx((14.0 / 20 + 4.0 / 20) / 2));
}

TEST_CASE("an output whose targets are all equal does not count in R2") {
  CHECK(figures(evaluated({2, 2}, {0, 5, 1, 6}, {0, 5, 1, 5}), HuberLoss{}).at("r2") == Approx(1.0));
  CHECK(figures(evaluated({2, 1}, {0, 1}, {3, 3}), L1Loss{}).count("r2") == 0);
}

TEST_CASE("several labels have the F1 score of all decisions and the mean average precision over the classes") {
  // Class 0: scores 3, 2, 1, -1 of targets 1, 0, 1, 0: precision 1 and 2/3 where recall grows. Class 1: the scores 1
  // and 1 share a threshold, with one positive target: precision 1/2. Class 2 has no positive target.
  const auto found =
      figures(evaluated({4, 3}, {3, 1, -1, 2, 1, -1, 1, -2, -1, -1, -3, 2}, {1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}),
              BceWithLogitsLoss{});
  CHECK(found.size() == 2);
  CHECK(found.at("map") == Approx(((1 + 2.0 / 3) / 2 + 0.5) / 2));
  CHECK(found.at("f1") == Approx(2 * 3.0 / (6 + 3)));  // 3 hits, 6 found, 3 there
}

TEST_CASE("without a positive target, or without samples, there are no such figures") {
  CHECK(figures(evaluated({2, 1}, {1, -1}, {0, 0}), FocalLoss{}).empty());
  CHECK(figures({}, MseLoss{}).empty());
}
