#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "dp/random.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/low_float.h"
#include "kernels/step_state.h"
#include "support/catch.h"
#include "support/sanitized.h"

namespace {

using namespace dp::kernels;

constexpr std::int64_t kCount = 4096;  // in the first-level cache
constexpr UpdateKind kMomentum = kind_of(dp::Sgd{.momentum = 0.9f});

// The time of one update on one thread: the least of several measurements.
double seconds_of(HostOp& update, double nesterov) {
  std::vector<float> weights(kCount, 1), gradients(kCount, 1), momenta(kCount, 0);
  StepInputs inputs;
  inputs.update.groups[0] = {.lr = 1e-6f, .weight_decay = 0};
  inputs.update.options = {.momentum = 0.9, .nesterov = nesterov};
  StepResults results;
  void* const args[] = {weights.data(), gradients.data(), momenta.data(), nullptr, &inputs, &results, nullptr};
  double least = std::numeric_limits<double>::infinity();
  for (int repetition = 0; repetition < 200; ++repetition) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) update.execute(args, nullptr);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 10);
  }
  return least;
}

}  // namespace

// GCC once vectorised only the loop with Nesterov momentum: the other one took three times as long.
TEST_CASE("an update with plain momentum is as fast as one with Nesterov momentum", "[speed]") {
  if (dp::test::kSanitized) DP_SKIP("the sanitizers' own code takes most of the time of the loops");
  const auto update = make(OptimizerUpdate{kCount, kMomentum}, CpuOpOptions{.threads = 1});
  const double plain = seconds_of(*update, 0), nesterov = seconds_of(*update, 1);
  CHECK(plain < 1.5 * nesterov);
  CHECK(nesterov < 1.5 * plain);
}

TEST_CASE("an update that also writes bfloat16 weights changes no bit of the weights, in any groups") {
  dp::Random random(94, dp::RandomUse::synthetic);
  constexpr std::int64_t kLong = 3 * 4096 + 5;  // several runs that fit in the cache
  const auto values = [&] {
    std::vector<float> made(kLong);
    for (float& value : made) value = random.uniform(-1, 1);
    return made;
  };
  const std::vector<float> start = values(), gradients = values(), velocity = values();
  std::vector<std::uint8_t> all_same((kLong + kGroupElements - 1) / kGroupElements, 2), mixed = all_same;
  for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] = static_cast<std::uint8_t>(i / 7 % 3);
  StepInputs inputs;
  for (const int group : {0, 1, 2})
    inputs.update.groups[group] = {.lr = 0.1f * static_cast<float>(1 + group), .weight_decay = 0.01f};
  inputs.update.options = {.momentum = 0.9, .nesterov = 1};
  for (const std::vector<std::uint8_t>& groups : {std::vector<std::uint8_t>{}, all_same, mixed})
    for (const int threads : {1, 3}) {
      std::vector<float> weights = start, momenta = velocity, with_copy = start, their_momenta = velocity;
      std::vector<BFloat16> copy(kLong + 8, BFloat16{0xABCD}), expected = copy;
      StepResults results;
      auto* const map = groups.empty() ? nullptr : const_cast<std::uint8_t*>(groups.data());
      const auto run = [&](const OptimizerUpdate& desc, std::vector<float>& w, std::vector<float>& m, BFloat16* low) {
        void* const args[] = {w.data(), const_cast<float*>(gradients.data()), m.data(), map, &inputs, &results, low};
        make(desc, CpuOpOptions{.threads = threads})->execute(args, nullptr);
      };
      run({.count = kLong, .kind = kMomentum}, weights, momenta, nullptr);
      run({.count = kLong, .kind = kMomentum, .copy = dp::DType::bf16}, with_copy, their_momenta, copy.data());
      for (std::size_t i = 0; i < weights.size(); ++i) expected[i] = from_float<BFloat16>(weights[i]);
      INFO(groups.size() << " groups, " << threads << " threads");
      CHECK(weights != start);
      CHECK(with_copy == weights);
      CHECK(their_momenta == momenta);
      CHECK(copy == expected);
      CHECK(results.grad_nonfinite == 0);
    }
}
