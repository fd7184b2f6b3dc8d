#include "engine/parallel/measure_split.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "dp/data_parallel.h"
#include "dp/error.h"
#include "dp/random.h"

namespace dp {
namespace {

constexpr int kWarmUp = 3, kLeastSteps = 5, kMostSteps = 50;
constexpr double kSeconds = 0.5;  // measures for this long, but between kLeastSteps and kMostSteps

Batch random_images(const Model& model, bool has_targets, std::int64_t rows) {
  Batch batch;
  batch.images = Tensor(model.input().prepended(rows));
  batch.labels = Tensor({rows}, DType::i32);
  if (has_targets) batch.targets = Tensor(model.output().prepended(rows));
  batch.samples = Tensor({rows}, DType::i64);
  Random random(0, RandomUse::synthetic);
  for (float& value : batch.images.span<float>()) value = random.uniform(-1, 1);
  return batch;
}

// Changes the options so that no replica waits for another one during its forward and backward passes.
DataParallelOptions independent(DataParallelOptions options) {
  options.split = Split::balanced;
  options.split_weights.clear();
  options.graphs = Graphs::never;  // a graph has one time for all phases
  options.batch_norm = BatchNormMode::master;
  options.loss = LossAt::local;
  options.own_loss.reset();  // cross-entropy takes its place: a batch of random images has no targets
  options.sample_weights = false;
  options.on_nonfinite = OnNonfinite::skip;  // random images may overflow
  options.ema_decay.reset();
  options.grad_accum_steps = 1;
  options.check_replicas = false;
  options.trace_steps = 0;
  return options;
}

std::vector<PhaseTimes> measured_times(DataParallel& net, std::int64_t rows) {
  const Batch images = random_images(net.model(), net.options().output_loss || net.options().soft_targets, rows);
  const Optimizer none = Sgd{.lr = 0};
  const auto step = [&] {
    net.train_step(images, none);
    net.take_stats();  // waits for the devices
  };
  for (int i = 0; i < kWarmUp; ++i) step();
  net.take_phase_times();
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (int i = 0; i < kLeastSteps || (i < kMostSteps && passed() < kSeconds); ++i) step();
  return net.take_phase_times();
}

}  // namespace

std::vector<int> measure_split(const Model& model, const DataParallelOptions& options, std::int64_t batch) {
  if (options.process_group || options.logical_shards > 0 || options.deterministic || options.pipeline.stages > 1)
    throw Error(ErrorCode::usage,
                "a split by measured speed requires one process, no logical shards, no pipeline, and no "
                "--deterministic");
  for (std::int64_t divisor = 1;; divisor *= 2) {
    DataParallel net(model, independent(options));
    if (net.size() == 1) return {1};
    const std::int64_t least = 2 * std::int64_t{net.size()};
    const std::int64_t rows = std::max(batch / options.grad_accum_steps / divisor, least);
    try {
      return engine::weights_of(measured_times(net, rows), rows);
    } catch (const Error& error) {  // an equal share may be too large for the smallest device
      if (error.code() != ErrorCode::device || rows == least || net.step_count() > 0) throw;
    }
  }
}

namespace engine {

std::vector<int> weights_of(const std::vector<PhaseTimes>& times, std::int64_t rows) {
  const std::vector<std::int64_t> shares = split_batch(rows, static_cast<int>(times.size()), Split::balanced);
  std::vector<double> speeds;
  for (std::size_t i = 0; i < times.size(); ++i)
    speeds.push_back(static_cast<double>(shares[i]) / (times[i].forward + times[i].backward));
  const auto [slowest, fastest] = std::ranges::minmax(speeds);
  if (!(fastest > kEqualSpeeds * slowest) || !std::isfinite(fastest)) return std::vector<int>(speeds.size(), 1);
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<int> weights;
  for (const double speed : speeds) weights.push_back(std::max(1, static_cast<int>(std::lround(1000 * speed / all))));
  return weights;
}

}  // namespace engine
}  // namespace dp
