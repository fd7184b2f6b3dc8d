// Estimates the memory of training, with the functions that give the allocations their sizes. It makes the plans, but
// allocates no memory for them.
#include <algorithm>

#include "dp/error.h"
#include "engine/step/bucket_tuning.h"
#include "engine/step/memory/memory_plan.h"
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
    for (const engine::Stage& stage : setup_.stages)
      buckets_.push_back(setup_.buckets_of(stage, engine::default_bucket_bytes(setup_.parameter_bytes())));
    plans_.resize(setup_.stages.size());
  }

  std::vector<MemoryUse> of(const std::vector<std::int64_t>& train, const std::vector<std::int64_t>& eval) {
    std::vector<engine::BatchKind> batches;
    for (const std::int64_t rows : train) batches.push_back(engine::training_batch(rows, {}, setup_.options));
    for (const std::int64_t rows : eval) batches.push_back(engine::evaluation_batch(rows, {}, setup_.options));
    std::vector<MemoryUse> devices;
    for (std::size_t device = 0; device < setup_.options.devices.size(); ++device) {
      const int rank = static_cast<int>(device) / setup_.stage_count();
      const int stage = static_cast<int>(device) % setup_.stage_count();
      MemoryUse use = engine::memory_of_run(setup_, rank, stage, *context_, buckets_, update_);
      if (train.empty()) use.optimizer = use.snapshot = 0;
      add_batches(use, rank, stage, batches);
      if (rank == 0) use.other += of_gathered_loss(batches);
      devices.push_back(use);
    }
    return devices;
  }

 private:
  void add_batches(MemoryUse& use, int rank, int stage, const std::vector<engine::BatchKind>& batches) {
    const engine::BatchMemory memory =
        engine::memory_of_batches(setup_, rank, stage, batches,
                                  [&](const engine::PlanOptions& options) { return known_plan(stage, options).bytes; });
    use.weights += memory.folded_bytes();
    use.workspace = memory.activation_arena.workspace;
    use.activations =
        memory.activation_arena.total(setup_.replica_options(rank, stage)) - memory.activation_arena.workspace;
    use.other += memory.border_bytes.bytes_in_links(
        kernels::backend(setup_.options.devices.front().kind).links_have_two_queues());
  }

  std::size_t of_gathered_loss(const std::vector<engine::BatchKind>& batches) const {
    std::size_t buffers = 0, workspace = 0;
    for (const engine::BatchKind& batch : batches)
      for (int micro = 0; micro < batch.micro_batches && batch.gathers_logits; ++micro) {
        const std::int64_t rows = batch.micro_rows(micro);
        if (rows == 0) continue;
        buffers = std::max(buffers, engine::GatheredLoss::sizes(setup_, rows).total());
        if (setup_.options.loss != LossAt::gathered) continue;  // a loss of the program's own has no op
        workspace = std::max(
            workspace, engine::GatheredLoss::workspace_of(*engine::GatheredLoss::make_op(setup_, *context_, rows)));
      }
    return buffers + workspace;
  }

  struct Known {
    engine::PlanOptions options;
    engine::PlanBytes bytes;
    kernels::TensorDesc output{};  // of a stage but the last
  };
  Known known_plan(int stage, engine::PlanOptions options) {
    auto& plans = plans_[static_cast<std::size_t>(stage)];
    for (const Known& known : plans)
      if (known.options.batch == options.batch && known.options.training == options.training &&
          known.options.accumulate == options.accumulate)
        return known;
    options.last = setup_.is_last(stage);
    if (stage > 0) options.input = known_plan(stage - 1, options).output;
    const engine::Stage& own = setup_.stage(stage);
    const Plan plan(own.model, *context_, options, own.table.get(), own.norms);
    plans.push_back({options, engine::PlanBytes::of(plan)});
    if (!options.last) plans.back().output = plan.output().desc;
    return plans.back();
  }

  engine::ModelSetup setup_;
  const engine::UpdateKind update_;
  std::unique_ptr<kernels::Context> context_;
  std::vector<std::vector<engine::Bucket>> buckets_;  // per stage
  std::vector<std::vector<Known>> plans_;             // per stage
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
