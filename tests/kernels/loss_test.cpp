#include <cmath>
#include <limits>

#include "kernels/everywhere.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::StepInputs;
using kernels::StepResults;

constexpr double kLossTolerance = 1e-6;  // exp and log in float32, a few roundings

std::vector<std::int32_t> random_labels(std::int64_t n, std::int64_t classes, Random& random) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < n; ++i)
    labels.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(classes))));
  return labels;
}

}  // namespace

TEST_CASE("softmax cross-entropy agrees with the reference, with and without label smoothing") {
  Random random(14, RandomUse::synthetic);
  for (const std::int64_t batch : {1, 3, 7, 60, 300})
    for (const std::int64_t classes : {1, 3, 10, 13, 100})
      for (const float smoothing : {0.0f, 0.1f}) {
        HostTensor logits = random_tensor({batch, classes}, random);
        for (double& value : logits.values) value *= 8;
        const auto labels = random_labels(batch, classes, random);
        const StepInputs inputs{.loss_scale = 1.0f / 60, .label_smoothing = smoothing};
        OpRig oracle(DeviceKind::reference);
        const LossResult expected = softmax_cross_entropy(oracle, logits, labels, inputs);
        everywhere([&](OpRig& rig) {
          INFO("batch " << batch << " classes " << classes << " smoothing " << smoothing);
          const LossResult actual = softmax_cross_entropy(rig, logits, labels, inputs);
          // With a single class or a certain prediction, the gradient is a small difference of numbers near 1.
          CHECK(norm(actual.dlogits.values) == Approx(norm(expected.dlogits.values)).margin(1e-6));
          if (classes > 1) CHECK(relative_error(actual.dlogits, expected.dlogits) <= 10 * kLossTolerance);
          CHECK(actual.results.loss_sum == Approx(expected.results.loss_sum).epsilon(kLossTolerance).margin(1e-6));
          CHECK(actual.results.samples == batch);
          CHECK(actual.results.top1 == expected.results.top1);
          CHECK(actual.results.top5 == expected.results.top5);
          CHECK(actual.results.nonfinite == 0);
        });
      }
}

TEST_CASE("the loss is added to the previous results and needs no gradient") {
  const HostTensor logits{{1, 2}, {0, 0}};
  StepResults before;
  before.loss_sum = 2.5, before.samples = 10, before.top1 = 4, before.top5 = 9, before.nonfinite = 1;
  before.clip = 0.5f, before.skip = 1;
  everywhere([&](OpRig& rig) {
    const StepResults after = softmax_cross_entropy(rig, logits, {1}, {}, false, before).results;
    CHECK(after.loss_sum == Approx(2.5 + std::log(2.0)).epsilon(1e-7));
    CHECK(after.samples == 11);
    CHECK(after.top1 == 4);  // a tie: the lower class wins
    CHECK(after.top5 == 10);
    CHECK(after.nonfinite == 1);
    CHECK(after.clip == 0.5f);
    CHECK(after.skip == 1);
  });
}

TEST_CASE("ties count for the lower class in top-1 and top-5") {
  const HostTensor equal{{3, 7}, std::vector<double>(21, 1.5)};
  everywhere([&](OpRig& rig) {
    const StepResults results = softmax_cross_entropy(rig, equal, {0, 4, 5}, {}).results;
    CHECK(results.top1 == 1);
    CHECK(results.top5 == 2);
  });
}

TEST_CASE("large logits do not overflow") {
  const HostTensor logits{{2, 3}, {1e30, 0, -1e30, -3e4, 3e4, 2e4}};
  everywhere([&](OpRig& rig) {
    const LossResult result = softmax_cross_entropy(rig, logits, {0, 2}, {});
    CHECK(result.results.nonfinite == 0);
    CHECK(result.results.loss_sum == Approx(1e4));
    CHECK(result.dlogits.values == std::vector<double>{0, 0, 0, 0, 1, -1});
  });
}

TEST_CASE("a NaN logit is counted and never correct") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const HostTensor logits{{3, 6}, {nan, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, nan, 2, 1, 0, 0, 0, 0}};
  everywhere([&](OpRig& rig) {
    for (const bool training : {true, false}) {
      const StepResults results = softmax_cross_entropy(rig, logits, {0, 5, 0}, {}, training).results;
      CHECK(results.samples == (training ? 1 : 3));
      CHECK(results.nonfinite == 2);
      CHECK(results.top1 == 1);
      CHECK(results.top5 == 1);
      CHECK(std::isfinite(results.loss_sum) == training);  // a skipped step does not spoil the epoch's loss
    }
  });
}

TEST_CASE("samples without a finite loss are excluded from the sum of a large batch") {
  HostTensor logits{{700, 4}, std::vector<double>(2800, 0.0)};
  for (const std::size_t bad : {3u, 300u, 699u}) logits.values[4 * bad] = std::numeric_limits<double>::infinity();
  everywhere([&](OpRig& rig) {
    const StepResults results = softmax_cross_entropy(rig, logits, std::vector<std::int32_t>(700, 1), {}).results;
    CHECK(results.samples == 697);
    CHECK(results.nonfinite == 3);
    CHECK(results.loss_sum == Approx(697 * std::log(4.0)).epsilon(1e-6));
  });
}

TEST_CASE("with few classes, a class with a NaN logit and an invalid label are not in the top 5") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const HostTensor logits{{3, 3}, {nan, 1, 2, 3, 2, 1, 3, 2, 1}};
  everywhere([&](OpRig& rig) {
    const StepResults results = softmax_cross_entropy(rig, logits, {0, -1, 3}, {}, false).results;
    CHECK(results.samples == 3);
    CHECK(results.nonfinite == 3);
    CHECK(results.top1 == 0);
    CHECK(results.top5 == 0);
    CHECK(std::isnan(results.loss_sum));
  });
}

TEST_CASE("a class with a logit of minus infinity does not change the loss of other labels") {
  const HostTensor logits{{1, 3}, {0, -std::numeric_limits<double>::infinity(), 0}};
  everywhere([&](OpRig& rig) {
    const LossResult result = softmax_cross_entropy(rig, logits, {2}, {});
    CHECK(result.results.loss_sum == Approx(std::log(2.0)).epsilon(kLossTolerance));
    CHECK(result.results.nonfinite == 0);
    CHECK(result.results.top1 == 0);
    CHECK(result.results.top5 == 1);
    CHECK(result.dlogits.values[0] == Approx(0.5).epsilon(kLossTolerance));
    CHECK(result.dlogits.values[1] == 0);
    CHECK(result.dlogits.values[2] == Approx(-0.5).epsilon(kLossTolerance));
  });
}

namespace {

const OutputLoss kOutputLosses[] = {MseLoss{},
                                    L1Loss{},
                                    HuberLoss{0.3f},
                                    SmoothL1Loss{0.3f},
                                    BceWithLogitsLoss{3},
                                    FocalLoss{0.7f, 1.5f},
                                    SoftCrossEntropyLoss{}};

struct Targets {
  HostTensor outputs, targets;
};
// Targets are exact in float32, and between 0 and 1.
Targets random_targets(std::int64_t batch, std::int64_t count, Random& random) {
  Targets made{random_tensor({batch, count}, random), random_tensor({batch, count}, random)};
  for (double& value : made.outputs.values) value *= 4;
  for (double& value : made.targets.values) value = std::abs(value);
  return made;
}

}  // namespace

TEST_CASE("losses of outputs agree with the reference, also scaled") {
  static_assert(std::size(kOutputLosses) == std::variant_size_v<OutputLoss>);
  Random random(15, RandomUse::synthetic);
  for (const OutputLoss& loss : kOutputLosses)
    for (const std::int64_t batch : {1, 7, 300})
      for (const std::int64_t outputs : {1, 13, 100}) {
        const auto [y, t] = random_targets(batch, outputs, random);
        const StepInputs inputs{.loss_scale = 1.0f / 60};
        OpRig oracle(DeviceKind::reference);
        const LossResult expected = loss_of_outputs(oracle, loss, y, t, inputs);
        const bool ranks = std::holds_alternative<SoftCrossEntropyLoss>(loss);
        everywhere([&](OpRig& rig) {
          INFO(name_of(loss) << ", batch " << batch << ", " << outputs << " outputs");
          const LossResult actual = loss_of_outputs(rig, loss, y, t, inputs);
          if (ranks && outputs == 1) {  // the only class is certain
            CHECK(norm(actual.dlogits.values) == 0);
            CHECK(actual.results.loss_sum == 0);
            return;
          }
          CHECK(relative_error(actual.dlogits, expected.dlogits) <= kLossTolerance);
          CHECK(actual.results.loss_sum == Approx(expected.results.loss_sum).epsilon(kLossTolerance));
          CHECK(actual.results.samples == batch);
          CHECK(actual.results.top1 == expected.results.top1);
          CHECK(actual.results.top5 == expected.results.top5);
          if (!ranks) CHECK(actual.results.top5 == 0);
          CHECK(actual.results.nonfinite == 0);
          if (rig.kind() == DeviceKind::cpu) return;  // float16 needs GPUs
          HostTensor larger = loss_of_outputs(rig, loss, y, t, inputs, true, {}, 1024.0f).dlogits;
          for (double& value : larger.values) value /= 1024;
          CHECK(relative_error(larger, expected.dlogits) <= kLossTolerance);
        });
      }
}

TEST_CASE("the weight of a sample is a factor of its loss and of its gradient") {
  constexpr std::int64_t kBatch = 20, kOutputs = 7;
  Random random(18, RandomUse::synthetic);
  const StepInputs inputs{.loss_scale = 0.25f};
  for (const OutputLoss& loss : kOutputLosses) {
    const auto [outputs, targets] = random_targets(kBatch, kOutputs, random);
    HostTensor weighted{{kBatch, kOutputs + 1}, {}};
    for (std::int64_t n = 0; n < kBatch; ++n) {
      const auto row = targets.values.begin() + n * kOutputs;
      weighted.values.insert(weighted.values.end(), row, row + kOutputs);
      weighted.values.push_back(static_cast<double>(n % 4) / 2);
    }
    everywhere([&](OpRig& rig) {
      INFO(name_of(loss));
      const LossResult actual = loss_of_outputs(rig, loss, outputs, weighted, inputs);
      LossResult plain = loss_of_outputs(rig, loss, outputs, targets, inputs);
      double sum = 0;
      for (std::int64_t n = 0; n < kBatch; ++n) {
        const auto rows = [&](const HostTensor& of) {
          const auto row = of.values.begin() + n * kOutputs;
          return HostTensor{{1, kOutputs}, {row, row + kOutputs}};
        };
        const double weight = static_cast<double>(n % 4) / 2;
        sum += weight * loss_of_outputs(rig, loss, rows(outputs), rows(targets), inputs).results.loss_sum;
        for (std::int64_t i = n * kOutputs; i < (n + 1) * kOutputs; ++i)
          plain.dlogits.values[static_cast<std::size_t>(i)] *= weight;
      }
      CHECK(actual.results.loss_sum == Approx(sum).epsilon(1e-6));
      CHECK(actual.results.samples == kBatch);
      CHECK(actual.results.top1 == plain.results.top1);
      CHECK(relative_error(actual.dlogits, plain.dlogits) <= kLossTolerance);
    });
  }
}

TEST_CASE("the slope of each loss of outputs is its difference quotient") {
  constexpr double kStep = 1e-6;
  Random random(16, RandomUse::synthetic);
  for (const OutputLoss& loss : kOutputLosses) {
    const auto [y, t] = random_targets(1, 200, random);
    for (std::size_t i = 0; i < 200; ++i)
      std::visit(
          [&](const auto& one) {
            const double at = y.values[i], target = t.values[i];
            INFO(name_of(loss) << " of " << at << ", target " << target);
            if constexpr (requires { one.slope(at, target); }) {  // the other one: gradient_test.cpp
              const double quotient = (one.value(at + kStep, target) - one.value(at - kStep, target)) / (2 * kStep);
              CHECK(one.slope(at, target) == Approx(quotient).epsilon(1e-6).margin(1e-8));
            }
          },
          loss);
  }
}

TEST_CASE("soft cross-entropy of one-hot targets is cross-entropy of class numbers") {
  Random random(17, RandomUse::synthetic);
  for (const std::int64_t classes : {2, 7, 40}) {
    HostTensor logits = random_tensor({50, classes}, random), targets{{50, classes}, std::vector<double>(50 * classes)};
    logits.values[3] = logits.values[4];  // a tie
    const auto labels = random_labels(50, classes, random);
    for (std::size_t n = 0; n < labels.size(); ++n)
      targets.values[n * static_cast<std::size_t>(classes) + static_cast<std::size_t>(labels[n])] = 1;
    const StepInputs inputs{.loss_scale = 1.0f / 50};
    everywhere([&](OpRig& rig) {
      const LossResult soft = loss_of_outputs(rig, SoftCrossEntropyLoss{}, logits, targets, inputs);
      const LossResult hard = softmax_cross_entropy(rig, logits, labels, inputs);
      CHECK(relative_error(soft.dlogits, hard.dlogits) <= kLossTolerance);
      CHECK(soft.results.loss_sum == Approx(hard.results.loss_sum).epsilon(kLossTolerance));
      CHECK(soft.results.top1 == hard.results.top1);
      CHECK(soft.results.top5 == hard.results.top5);
    });
  }
}

TEST_CASE("the first of the greatest targets is the label, and a class that cannot be has no loss without a target") {
  const double never = -std::numeric_limits<double>::infinity();
  const HostTensor logits{{2, 3}, {2, 1, 0, 0, never, 0}}, targets{{2, 3}, {0.25, 0.5, 0.5, 0, 0, 3}};
  everywhere([&](OpRig& rig) {
    const LossResult result = loss_of_outputs(rig, SoftCrossEntropyLoss{}, logits, targets, {});
    CHECK(result.results.nonfinite == 0);
    CHECK(result.results.top1 == 0);  // class 1 of the first sample is second; the second sample is a tie
    CHECK(result.results.top5 == 2);
    const double log_sum = std::log(std::exp(2) + std::exp(1) + 1);
    CHECK(result.results.loss_sum == Approx(1.25 * log_sum - 1 + 3 * std::log(2.0)).epsilon(kLossTolerance));
    CHECK(result.dlogits.values[4] == 0);
    CHECK(result.dlogits.values[5] == Approx(-1.5).epsilon(kLossTolerance));
  });
}

TEST_CASE("losses of outputs stay finite for certain outputs, and are not for NaN") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const HostTensor outputs{{4, 2}, {1e4, -1e4, 0, 0, nan, 0, 0, 0}}, targets{{4, 2}, {1, 0, 0.5, 1, 0, 0, nan, 0}};
  for (const OutputLoss& loss : kOutputLosses)
    everywhere([&](OpRig& rig) {
      INFO(name_of(loss));
      for (const bool training : {true, false}) {
        const LossResult result = loss_of_outputs(rig, loss, outputs, targets, {}, training);
        CHECK(result.results.samples == (training ? 2 : 4));
        CHECK(result.results.nonfinite == 2);
        CHECK(std::isfinite(result.results.loss_sum) == training);  // a skipped step does not spoil the epoch's loss
        for (std::size_t i = 0; training && i < 4; ++i) CHECK(std::isfinite(result.dlogits.values[i]));
      }
    });
}
