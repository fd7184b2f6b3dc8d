// Estimates the memory of training, with the functions that give the allocations their sizes. It makes the plans, but
// allocates no memory for them.
#include <algorithm>

#include "dp/error.h"
#include "engine/parallel/gathered_loss.h"
#include "engine/parallel/gradient_sync.h"
#include "engine/parallel/memory/batch_kind.h"
#include "engine/parallel/state/moving_average.h"
#include "engine/parallel/tuning/bucket_tuning.h"
#include "kernels/host/memory.h"

namespace dp {
namespace {

using engine::Plan;

class Estimate {
 public:
  Estimate(const Model& model, const DataParallelOptions& options, const Optimizer& optimizer)
      : setup_(model, resolved(options).options), update_(engine::kind_of(optimizer)) {
    const DataParallelOptions& o = setup_.options;
    kernels::ContextOptions context;
    context.threads = o.threads_per_replica;
    context.deterministic = o.deterministic;
    context.fast_convolutions = o.fast_convolutions;
    context.activations = activations_of(o);
    context_ = kernels::backend(o.devices.front().kind).open(o.devices.front(), context);
    const Plan layouts(setup_.model, *context_, setup_.plan_options(engine::kLayoutRows, true, false, false), nullptr,
                       setup_.norms);
    setup_.table = std::make_unique<engine::ParameterTable>(
        setup_.model, layouts.parameter_layouts(), context_->compute_type(), bucket_granularity(o), vectors_first(o));
    setup_.groups = std::make_unique<engine::ParameterGroups>(o.parameter_groups, *setup_.table);
    buckets_ = o.bucket_bytes != 0
                   ? setup_.table->buckets(o.bucket_bytes)
                   : engine::automatic_buckets(o, *setup_.table, engine::default_bucket_bytes(*setup_.table));
  }

  std::vector<MemoryUse> of(const std::vector<std::int64_t>& train, const std::vector<std::int64_t>& eval) {
    std::vector<engine::BatchKind> batches;
    for (const std::int64_t rows : train) batches.push_back(engine::training_batch(rows, {}, setup_.options));
    for (const std::int64_t rows : eval) batches.push_back(engine::evaluated_batch(rows, {}));
    std::vector<MemoryUse> replicas;
    for (int rank = 0; rank < static_cast<int>(setup_.options.devices.size()); ++rank) {
      MemoryUse use = of_weights(rank);
      if (train.empty()) use.optimizer = 0;
      add_activations(use, rank, batches);
      if (rank == 0 && setup_.options.loss == LossAt::gathered) use.other += of_gathered_loss(batches);
      replicas.push_back(use);
    }
    return replicas;
  }

 private:
  MemoryUse of_weights(int rank) const {
    const DataParallelOptions& o = setup_.options;
    const engine::Replica::Sizes sizes =
        engine::Replica::sizes(*setup_.table, setup_.norms, *context_, setup_.replica_options(rank));
    MemoryUse use = sizes.use();
    if (o.reduce_dtype == DType::bf16 && setup_.shards() > 1)
      use.gradients += engine::RoundedGradients::bytes(buckets_, static_cast<std::size_t>(setup_.local_shards()));
    std::int64_t updated = 0;
    for (const engine::Bucket& bucket : buckets_)
      updated += engine::updated_by(bucket, o.reduce, rank, setup_.size()).size();
    use.optimizer = engine::LocalOptimizer::state_bytes(update_, updated, setup_.element_bytes());
    use.other += engine::norm_bytes(buckets_) + setup_.groups->map().size();
    if (o.ema_decay && rank == 0) use.average = engine::MovingAverage::bytes(sizes);
    return use;
  }

  // As Replica::reserve() does, in the same order.
  void add_activations(MemoryUse& use, int rank, const std::vector<engine::BatchKind>& batches) {
    const engine::ReplicaOptions replica = setup_.replica_options(rank);
    const auto copies = static_cast<std::size_t>(replica.in_turns ? replica.local_shards : 1);
    std::size_t largest = 0;
    for (const engine::BatchKind& batch : batches)
      engine::for_each_plan(setup_, batch, rank, [&](const engine::PlanOptions& options) {
        const Sizes sizes = sizes_of(options);
        if (sizes.bytes <= largest) return;
        largest = sizes.bytes;
        use.workspace = sizes.workspace * copies;
        use.activations = sizes.bytes * copies - use.workspace;
      });
  }

  std::size_t of_gathered_loss(const std::vector<engine::BatchKind>& batches) const {
    std::size_t buffers = 0, workspace = 0;
    for (const engine::BatchKind& batch : batches)
      for (int micro = 0; micro < batch.micro_batches && batch.gathers; ++micro) {
        const std::int64_t rows = batch.micro_rows(micro);
        if (rows == 0) continue;
        buffers = std::max(buffers, engine::GatheredLoss::sizes(setup_, rows).total());
        workspace = std::max(
            workspace, engine::GatheredLoss::workspace_of(*engine::GatheredLoss::make_op(setup_, *context_, rows)));
      }
    return buffers + workspace;
  }

  struct Sizes {
    std::size_t bytes = 0, workspace = 0;
  };
  Sizes sizes_of(const engine::PlanOptions& options) {
    for (const auto& [known, sizes] : plans_)
      if (known.batch == options.batch && known.training == options.training && known.accumulate == options.accumulate)
        return sizes;
    const Plan plan(setup_.model, *context_, options, setup_.table.get(), setup_.norms);
    plans_.emplace_back(options, Sizes{engine::Replica::activation_bytes(plan), plan.workspace_bytes()});
    return plans_.back().second;
  }

  engine::ModelSetup setup_;
  const engine::UpdateKind update_;
  std::unique_ptr<kernels::Context> context_;
  std::vector<engine::Bucket> buckets_;
  std::vector<std::pair<engine::PlanOptions, Sizes>> plans_;
};

}  // namespace

std::vector<MemoryUse> estimate_memory(const Model& model, const DataParallelOptions& options,
                                       const std::vector<std::int64_t>& train_batches,
                                       const std::vector<std::int64_t>& eval_batches, const Optimizer& optimizer) {
  return Estimate(model, options, optimizer).of(train_batches, eval_batches);
}

std::size_t free_memory(const Device& device) { return kernels::backend(device.kind).free_memory(device); }

std::int64_t largest_batch(const Model& model, const DataParallelOptions& options, std::size_t bytes,
                           const Optimizer& optimizer) {
  Estimate estimate(model, options, optimizer);
  const auto fits = [&](std::int64_t batch) {
    for (const MemoryUse& use : estimate.of({batch}, {batch}))
      if (use.total() > bytes) return false;
    return true;
  };
  if (!fits(1)) return 0;
  std::int64_t good = 1, bad = 2;
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // larger batches exceed the ops' index range
  while (bad <= kMost && fits(bad)) good = bad, bad *= 2;
  while (bad - good > std::max<std::int64_t>(1, good / 256)) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace dp
