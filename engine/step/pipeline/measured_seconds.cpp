#include "engine/step/pipeline/measured_seconds.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "engine/base/test_modes.h"
#include "engine/step/replica.h"

namespace dp::engine {
namespace {

constexpr double kRoundSeconds = 0.02;  // at least, unless that takes more than kMostPasses
constexpr double kMostPasses = 100;
constexpr int kRounds = 3;

double seconds_of_passes(Replica& replica, const Plan& plan, int passes) {
  TimeSource& time = *test_modes().time;
  const auto begin = time.now();
  for (int pass = 0; pass < passes; ++pass)
    for (const auto* steps : {&plan.forward(), &plan.loss(), &plan.backward(), &plan.weight_gradients()})
      replica.runner.run(0, *steps);
  replica.context().flush();
  replica.compute().synchronize();
  return std::chrono::duration<double>(time.now() - begin).count() / passes;
}

}  // namespace

double measured_seconds(const ModelSetup& setup, const Model& part, const Plan& plan, const OpenContext& open) {
  auto context = open();
  context->bind_thread();
  const NormTable norms(part);
  const ParameterTable table(part, plan.parameter_layouts(), context->compute_type());
  const bool first = !plan.options().input;
  Replica replica(part, std::move(context), table, norms,
                  {.stage = first ? 0 : 1,
                   .shards = setup.shards(),
                   .scales_loss = setup.scales_loss(),
                   .target_bytes = setup.target_bytes(true)});
  const Plan& own = replica.runner.plan(plan.options());

  const std::vector<float> images(static_cast<std::size_t>(kMeasuredRows * setup.model.input().numel()));
  const std::vector<std::byte> labels(static_cast<std::size_t>(kMeasuredRows) * setup.target_bytes(true));
  std::vector<std::int64_t> samples(kMeasuredRows);
  std::iota(samples.begin(), samples.end(), 0);
  replica.arenas.upload_step_inputs({});
  replica.runner.bind(0, &own,
                      {images.data(), labels.data(), samples.data(), kMeasuredRows,
                       /*resident=*/nullptr, setup.target_bytes(true)});

  seconds_of_passes(replica, own, 1);  // loads kernels and fills caches
  double least = seconds_of_passes(replica, own, 1);
  const int passes = static_cast<int>(std::clamp(std::ceil(kRoundSeconds / least), 1.0, kMostPasses));
  for (int round = 0; round < kRounds; ++round) least = std::min(least, seconds_of_passes(replica, own, passes));
  return least;
}

}  // namespace dp::engine
