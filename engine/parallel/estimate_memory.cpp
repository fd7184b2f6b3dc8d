// Estimates the memory of training, with the functions that give the allocations their sizes. It makes the plans, but
// allocates no memory for them.
#include <algorithm>
#include <map>

#include "dp/error.h"
#include "engine/step/batch_kind.h"
#include "engine/step/bucket_tuning.h"
#include "engine/step/handed_over.h"
#include "engine/step/worker.h"
#include "kernels/device/host/memory.h"

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
    context.fast_convolutions = !o.exact_convolutions;
    context.activations = activations_of(o);
    const auto open = [&] { return kernels::backend(o.devices.front().kind).open(o.devices.front(), context); };
    context_ = open();
    setup_.make_stages(*context_, open);
    for (const engine::Stage& stage : setup_.stages) {
      buckets_.push_back(setup_.buckets_of(stage, engine::default_bucket_bytes(setup_.parameter_bytes())));
      norm_bytes_ += engine::norm_bytes(buckets_.back());
    }
    plans_.resize(setup_.stages.size());
  }

  std::vector<MemoryUse> of(const std::vector<std::int64_t>& train, const std::vector<std::int64_t>& eval) {
    std::vector<engine::BatchKind> batches;
    for (const std::int64_t rows : train) batches.push_back(engine::training_batch(rows, {}, setup_.options));
    for (const std::int64_t rows : eval) batches.push_back(engine::evaluated_batch(rows, {}, setup_.options));
    std::vector<MemoryUse> devices;
    for (std::size_t device = 0; device < setup_.options.devices.size(); ++device) {
      const int rank = static_cast<int>(device) / setup_.stage_count();
      const int stage = static_cast<int>(device) % setup_.stage_count();
      MemoryUse use = of_weights(rank, stage);
      if (train.empty()) use.optimizer = 0;
      add_activations(use, rank, stage, batches);
      if (rank == 0 && setup_.options.loss == LossAt::gathered) use.other += of_gathered_loss(batches);
      devices.push_back(use);
    }
    return devices;
  }

 private:
  MemoryUse of_weights(int rank, int stage) const {
    const DataParallelOptions& o = setup_.options;
    const engine::Arenas::Sizes sizes = setup_.sizes_of(rank, stage, *context_);
    const std::vector<engine::Bucket>& buckets = buckets_[static_cast<std::size_t>(stage)];
    MemoryUse use = sizes.use();
    if (o.reduce_dtype == DType::bf16 && setup_.shards() > 1)
      use.gradients += engine::RoundedGradients::bytes(buckets, static_cast<std::size_t>(setup_.local_shards()));
    std::int64_t updated = 0;
    for (const engine::Bucket& bucket : buckets)
      updated += engine::updated_by(bucket, o.reduce, rank, setup_.size()).size();
    use.optimizer = engine::LocalOptimizer::state_bytes(update_, updated, setup_.element_bytes());
    // All stages hold the partial sums of the norm of the whole gradient.
    const bool joins = setup_.pipelined() && setup_.update_needs_whole_gradient();
    use.other += (joins ? norm_bytes_ : engine::norm_bytes(buckets)) + setup_.stage(stage).groups->map().size();
    if (o.ema_decay && rank == 0) use.average = engine::MovingAverage::bytes(sizes);
    return use;
  }

  // As PlanRunner::reserve() does, in the same order.
  void add_activations(MemoryUse& use, int rank, int stage, const std::vector<engine::BatchKind>& batches) {
    const engine::ReplicaOptions replica = setup_.replica_options(rank, stage);
    engine::ArenaSize arena;
    engine::HandedOver handed_over;
    std::map<std::int64_t, std::size_t> folded;  // by the rows of a plan, which has its own
    for (const engine::BatchKind& batch : batches)
      engine::for_each_plan(setup_, batch, rank, stage, [&](const engine::PlanOptions& options) {
        const Sizes sizes = sizes_of(stage, options);
        handed_over.grow(sizes.handed_over);
        if (!options.training) folded[options.batch] = sizes.folded;
        arena.grow(sizes.lane, sizes.workspace, sizes.handed_over.input, replica);
      });
    for (const auto& [rows, bytes] : folded) use.weights += bytes;
    use.workspace = arena.workspace;
    use.activations = arena.total(replica) - arena.workspace;
    use.other += handed_over.in_links(kernels::backend(setup_.options.devices.front().kind).links_have_two_queues());
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
    std::size_t lane = 0, workspace = 0, folded = 0;
    engine::HandedOver handed_over;
    kernels::TensorDesc output{};  // of a stage but the last
  };
  Sizes sizes_of(int stage, engine::PlanOptions options) {
    auto& plans = plans_[static_cast<std::size_t>(stage)];
    for (const auto& [known, sizes] : plans)
      if (known.batch == options.batch && known.training == options.training && known.accumulate == options.accumulate)
        return sizes;
    options.last = setup_.is_last(stage);
    if (stage > 0) options.input = sizes_of(stage - 1, options).output;
    const engine::Stage& own = setup_.stage(stage);
    const Plan plan(own.model, *context_, options, own.table.get(), own.norms);
    engine::ArenaSize one;
    one.grow(plan, engine::ReplicaOptions{});
    Sizes sizes{.lane = one.lane, .workspace = plan.workspace_bytes(), .handed_over = engine::HandedOver::of(plan)};
    sizes.folded = plan.folded_bytes();
    if (!options.last) sizes.output = plan.output().desc;
    plans.emplace_back(options, sizes);
    return sizes;
  }

  engine::ModelSetup setup_;
  const engine::UpdateKind update_;
  std::unique_ptr<kernels::Context> context_;
  std::vector<std::vector<engine::Bucket>> buckets_;                       // per stage
  std::size_t norm_bytes_ = 0;                                             // of all stages
  std::vector<std::vector<std::pair<engine::PlanOptions, Sizes>>> plans_;  // per stage
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
  bad = std::min(bad, kMost + 1);
  while (bad - good > std::max<std::int64_t>(1, good / 256)) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace dp
