#include <vector>

#include "dp/random.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/low_float.h"
#include "kernels/step_state.h"
#include "support/catch.h"

namespace {

using namespace dp::kernels;

constexpr UpdateKind kMomentum = kind_of(dp::Sgd{.momentum = 0.9f});

}  // namespace

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
