// The digits must not be linearly separable: softmax regression by plain SGD stays below 95 %.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "data/datasets/digits.h"
#include "dp/random.h"
#include "support/catch.h"

namespace {

constexpr std::size_t kInputs = 784, kClasses = 10;

struct Softmax {
  std::array<std::array<float, kInputs>, kClasses> weights{};
  std::array<float, kClasses> bias{};

  std::array<float, kClasses> logits(const std::vector<float>& x) const {
    std::array<float, kClasses> out = bias;
    for (std::size_t k = 0; k < kClasses; ++k)
      for (std::size_t i = 0; i < kInputs; ++i) out[k] += weights[k][i] * x[i];
    return out;
  }

  void learn(const std::vector<float>& x, std::size_t label, float rate) {
    std::array<float, kClasses> p = logits(x);
    const float top = *std::max_element(p.begin(), p.end());
    float sum = 0;
    for (float& value : p) sum += value = std::exp(value - top);
    for (std::size_t k = 0; k < kClasses; ++k) {
      const float step = rate * (p[k] / sum - (k == label ? 1.0f : 0.0f));
      for (std::size_t i = 0; i < kInputs; ++i) weights[k][i] -= step * x[i];
      bias[k] -= step;
    }
  }
};

std::vector<float> input(const dp::Dataset& dataset, std::int64_t index) {
  const auto image = dataset.image(index);
  std::vector<float> x(image.begin(), image.end());
  for (float& value : x) value = (value / 255 - dataset.normalization().mean[0]) / dataset.normalization().std[0];
  return x;
}

}  // namespace

TEST_CASE("a linear model learns the digits and stays below 95 %") {
  const auto train = dp::draw_digits(dp::DigitsPart::train, 10000, 42);
  const auto test = dp::draw_digits(dp::DigitsPart::test, 2000, 42);
  Softmax model;
  dp::Random random(1, dp::RandomUse::shuffle);
  constexpr int kSteps = 60000;
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t index = random.below(10000);
    const float rate = 0.001f * (1 - static_cast<float>(step) / kSteps);
    model.learn(input(*train, index), static_cast<std::size_t>(train->label(index)), rate);
  }
  int right = 0;
  for (std::int64_t i = 0; i < test->size(); ++i) {
    const auto logits = model.logits(input(*test, i));
    right += std::max_element(logits.begin(), logits.end()) - logits.begin() == test->label(i);
  }
  const double accuracy = right / 2000.0;
  INFO("accuracy " << accuracy);
  CHECK(accuracy < 0.95);
  CHECK(accuracy > 0.80);  // the model did learn; else the bound above means nothing
}
