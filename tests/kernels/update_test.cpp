#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/optimizer/optimizer.h"
#include "kernels/everywhere.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::StepInputs;
using kernels::StepResults;

constexpr double kUpdateTolerance = 1e-6;  // a few float32 roundings per element
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every optimizer with default options, and others that use other slots or branches.
std::vector<Optimizer> optimizers() {
  std::vector<Optimizer> all = engine::every_optimizer();
  all.insert(all.end(), {Sgd{.momentum = 0.9f}, AdamW{.beta1 = 0}, RmsProp{.alpha = 0.5, .momentum = 0.9f},
                         RmsProp{.centered = true}, RmsProp{.momentum = 0.9f, .centered = true}});
  return all;
}

}  // namespace

TEST_CASE("the SGD update agrees with the reference with momentum, Nesterov, decay, clipping and odd counts") {
  Random random(15, RandomUse::synthetic);
  OpRig oracle(DeviceKind::reference);
  for (const std::int64_t count : {1, 13, 64, 4099})
    for (const float momentum : {0.0f, 0.9f})
      for (const bool nesterov : {false, true})
        for (const float decay : {0.0f, 5e-2f}) {
          const Sgd sgd{.lr = 0.3f, .momentum = momentum, .nesterov = nesterov, .weight_decay = decay};
          StepResults results;
          results.clip = count % 2 ? 0.25f : 1.0f;
          const HostTensor w = random_tensor({count}, random), m = random_tensor({count}, random);
          const HostTensor g = random_tensor({count}, random);
          HostTensor expected_w = w, expected_m = m;
          sgd_update(oracle, expected_w, g, momentum > 0 ? &expected_m : nullptr, sgd, results);
          everywhere([&](OpRig& rig) {
            INFO("count " << count << " momentum " << momentum << " nesterov " << nesterov << " decay " << decay);
            HostTensor actual_w = w, actual_m = m;
            sgd_update(rig, actual_w, g, momentum > 0 ? &actual_m : nullptr, sgd, results);
            CHECK(relative_error(actual_w, expected_w) <= kUpdateTolerance);
            CHECK(relative_error(actual_m, expected_m) <= kUpdateTolerance);
          });
        }
}

TEST_CASE("every update agrees with the reference in early and late updates, with clipping and odd counts") {
  Random random(19, RandomUse::synthetic);
  OpRig oracle(DeviceKind::reference);
  for (const Optimizer& optimizer : optimizers())
    for (const std::int64_t count : {1, 13, 64, 4099})
      for (const std::int64_t updates : {0, 1, 20, 100000}) {
        const kernels::UpdateKind kind = kernels::kind_of(optimizer);
        kernels::UpdateInputs inputs = update_inputs(optimizer);
        inputs.groups[0] = {.lr = 0.01f, .weight_decay = 0.1f};
        StepResults results;
        results.clip = count % 2 ? 0.25f : 1.0f;
        results.skipped_steps = 2;
        const HostTensor w = random_tensor({count}, random);
        std::vector<HostTensor> gradients;
        for (int i = 0; i < 3; ++i) gradients.push_back(random_tensor({count}, random));
        // The weights, then the slots, after three updates.
        const auto updated = [&](OpRig& rig) {
          std::vector<HostTensor> tensors(static_cast<std::size_t>(kind.slot_count()) + 1, zeros({count}));
          tensors[0] = w;
          std::vector<HostTensor*> slots;
          for (std::size_t i = 1; i < tensors.size(); ++i) slots.push_back(&tensors[i]);
          for (int i = 0; i < 3; ++i) {
            inputs.updates = updates + 2 + i;
            optimizer_update(rig, kind, tensors[0], gradients[static_cast<std::size_t>(i)], slots, inputs, results);
          }
          return tensors;
        };
        const std::vector<HostTensor> expected = updated(oracle);
        CHECK(relative_error(expected[0], w) > 1e-4);
        everywhere([&](OpRig& rig) {
          const std::vector<HostTensor> actual = updated(rig);
          for (std::size_t i = 0; i < actual.size(); ++i) {
            INFO(name_of(optimizer) << " count " << count << " updates " << updates << " tensor " << i);
            CHECK(relative_error(actual[i], expected[i]) <= kUpdateTolerance);
          }
        });
      }
}

TEST_CASE("each unit of sixteen elements is updated with the rate and decay of its group") {
  Random random(20, RandomUse::synthetic);
  const std::vector<std::uint8_t> groups{0, 3, 3, 1, 0, 15, 0};
  const std::int64_t count = 6 * kernels::kGroupElements + 5;
  kernels::UpdateInputs inputs;
  for (const int group : {0, 1, 3, 15})
    inputs.groups[group] = {.lr = 0.1f * static_cast<float>(group), .weight_decay = 0.01f * static_cast<float>(group)};
  inputs.options.momentum = 0.9;
  const HostTensor w = random_tensor({count}, random), g = random_tensor({count}, random);
  const HostTensor m = random_tensor({count}, random);
  HostTensor expected = w;
  for (std::int64_t i = 0; i < count; ++i) {
    const double group = groups[static_cast<std::size_t>(i / kernels::kGroupElements)];
    const auto at = static_cast<std::size_t>(i);
    expected.values[at] -= 0.1 * group * (0.9 * m.values[at] + g.values[at] + 0.01 * group * w.values[at]);
  }
  everywhere([&](OpRig& rig) {
    HostTensor actual = w, momenta = m;
    optimizer_update(rig, kernels::kind_of(Sgd{.momentum = 0.9f}), actual, g, {&momenta}, inputs, {}, groups);
    CHECK(relative_error(actual, expected) <= kUpdateTolerance);
  });
}

TEST_CASE("a skipped update leaves weights and momenta unchanged bit for bit") {
  Random random(16, RandomUse::synthetic);
  const HostTensor w = random_tensor({100}, random), m = random_tensor({100}, random);
  HostTensor g = random_tensor({100}, random);
  g.values[3] = kInfinity;
  StepResults results;
  results.skip = 1;
  everywhere([&](OpRig& rig) {
    HostTensor actual_w = w, actual_m = m;
    sgd_update(rig, actual_w, g, &actual_m, {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f}, results);
    CHECK(actual_w.values == w.values);
    CHECK(actual_m.values == m.values);
  });
}

TEST_CASE("a moving average moves towards the weights by one minus the decay") {
  Random random(18, RandomUse::synthetic);
  for (const std::int64_t count : {1, 13, 4099})
    for (const double decay : {0.0, 0.25, 0.999, 1.0}) {
      const HostTensor x = random_tensor({count}, random), average = random_tensor({count}, random);
      HostTensor expected = average;
      for (std::size_t i = 0; i < expected.values.size(); ++i)
        expected.values[i] = decay * average.values[i] + (1 - decay) * x.values[i];
      everywhere([&](OpRig& rig) {
        INFO("count " << count << " decay " << decay);
        CHECK(relative_error(moving_average(rig, x, average, decay), expected) <= kUpdateTolerance);
      });
    }
}

TEST_CASE("partial sums of squares cover one block each, and the last block may be short") {
  Random random(17, RandomUse::synthetic);
  for (const std::int64_t count : {1, 1023, 1024, 1025, 3000}) {
    const HostTensor g = random_tensor({count}, random);
    std::vector<double> expected(static_cast<std::size_t>((count + 1023) / 1024));
    for (std::size_t i = 0; i < g.values.size(); ++i) expected[i / 1024] += g.values[i] * g.values[i];
    everywhere([&](OpRig& rig) {
      const std::vector<double> partials = grad_norm_partials(rig, g);
      REQUIRE(partials.size() == expected.size());
      // The sums are double on every device, and squares of float32 values are exact in double.
      for (std::size_t i = 0; i < partials.size(); ++i) CHECK(partials[i] == Approx(expected[i]).epsilon(1e-12));
    });
  }
}

TEST_CASE("NaN and Inf make only their own partial non-finite, and large numbers do not overflow") {
  for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    HostTensor g = zeros({4000});
    g.values[1500] = bad;
    g.values[3500] = 3e38;
    everywhere([&](OpRig& rig) {
      const std::vector<double> partials = grad_norm_partials(rig, g);
      CHECK(partials[0] == 0);
      CHECK_FALSE(std::isfinite(partials[1]));
      CHECK(partials[2] == 0);
      CHECK(partials[3] == Approx(9e76).epsilon(1e-6));
    });
  }
}

TEST_CASE("the norm gives PyTorch's clip factor, and 1 if it is small or clipping is off") {
  const std::vector<double> partials{9, 16, 0, 75};  // norm 10
  everywhere([&](OpRig& rig) {
    StepResults before;
    before.loss_sum = 7, before.clip = 0.1f, before.skip = 1;
    const StepResults clipped = grad_norm_finish(rig, partials, {.max_norm = 2.5f}, before);
    CHECK(clipped.grad_norm == Approx(10).epsilon(1e-12));
    CHECK(clipped.clip == Approx(2.5 / (10 + 1e-6)).epsilon(1e-7));
    CHECK(clipped.skip == 0);
    CHECK(clipped.grad_nonfinite == 0);
    CHECK(clipped.loss_sum == 7);
    CHECK(grad_norm_finish(rig, partials, {.max_norm = 11}, before).clip == 1);
    CHECK(grad_norm_finish(rig, partials, {.max_norm = 0}, before).clip == 1);
  });
}

TEST_CASE("the norm is that of any number of partials") {
  Random random(21, RandomUse::synthetic);
  for (const std::size_t count : {std::size_t{0}, std::size_t{31}, std::size_t{1024}, std::size_t{5003}}) {
    std::vector<double> partials(count);
    double sum = 0;
    for (double& partial : partials) sum += partial = random.uniform();
    everywhere([&](OpRig& rig) {
      CHECK(grad_norm_finish(rig, partials, {}).grad_norm == Approx(std::sqrt(sum)).epsilon(1e-12));
    });
  }
}

TEST_CASE("a non-finite norm is reported and skips the update only on request") {
  for (const double bad : {kInfinity, std::numeric_limits<double>::quiet_NaN()})
    everywhere([&](OpRig& rig) {
      const std::vector<double> partials{1, bad, 2};
      const StepResults skipping = grad_norm_finish(rig, partials, {.max_norm = 1, .skip_nonfinite = 1});
      CHECK(skipping.skip == 1);
      CHECK(skipping.grad_nonfinite == 1);
      CHECK(skipping.skipped_steps == 1);
      const StepResults aborting = grad_norm_finish(rig, partials, {.max_norm = 1, .skip_nonfinite = 0});
      CHECK(aborting.skip == 0);
      CHECK(aborting.grad_nonfinite == 1);
      CHECK(aborting.skipped_steps == 0);
      const StepResults next = grad_norm_finish(rig, {4.0}, {.skip_nonfinite = 1}, skipping);
      CHECK(next.skip == 0);
      CHECK(next.grad_nonfinite == 1);
      CHECK(next.grad_norm == 2);
      CHECK(next.skipped_steps == 1);
    });
}

TEST_CASE("every update reports a weight that is not finite, at any place, until the host clears it") {
  constexpr std::int64_t kCount = 4 * kernels::kGroupElements + 3;
  const HostTensor ones{{kCount}, std::vector<double>(static_cast<std::size_t>(kCount), 1.0)};
  for (const Optimizer& optimizer : optimizers()) {
    INFO(name_of(optimizer));
    const kernels::UpdateKind kind = kernels::kind_of(optimizer);
    const auto reported = [&](OpRig& rig, const HostTensor& gradients, std::uint32_t before) {
      StepResults results, after;
      results.grad_nonfinite = before;
      HostTensor w = ones;
      std::vector<HostTensor> state(static_cast<std::size_t>(kind.slot_count()), zeros({kCount}));
      std::vector<HostTensor*> slots;
      for (HostTensor& slot : state) slots.push_back(&slot);
      optimizer_update(rig, kind, w, gradients, slots, update_inputs(optimizer), results, {}, &after);
      return after.grad_nonfinite;
    };
    everywhere([&](OpRig& rig) {
      CHECK(reported(rig, ones, 0) == 0);
      CHECK(reported(rig, ones, 1) == 1);
      for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()})
        for (const std::int64_t place : {std::int64_t{0}, std::int64_t{37}, kCount - 1}) {
          HostTensor gradients = ones;
          gradients.values[static_cast<std::size_t>(place)] = bad;
          CHECK(reported(rig, gradients, 0) == 1);
        }
    });
  }
}
