// Estimates the memory of training: adds up what DataParallel and its replicas allocate. It makes the plans, but
// allocates no memory for them.
#include <algorithm>

#include "dp/error.h"
#include "engine/parallel/bucket_tuning.h"
#include "engine/parallel/gradient_sync.h"
#include "engine/parallel/model_setup.h"
#include "kernels/host/memory.h"

namespace dp {
namespace {

using engine::Plan;

class Estimate {
 public:
  Estimate(const Model& model, const DataParallelOptions& options, const Optimizer& optimizer)
      : model_(model),
        update_(engine::kind_of(optimizer)),
        options_(resolved(options).options),
        ranks_(static_cast<int>(options_.devices.size())),
        norms_(model),
        shards_(options_.logical_shards > 0 ? options_.logical_shards : ranks_) {
    kernels::ContextOptions context;
    context.threads = options_.threads_per_replica;
    context.deterministic = options_.deterministic;
    context.fast_convolutions = options_.fast_convolutions;
    context.activations = activations_of(options_);
    context_ = kernels::backend(options_.devices.front().kind).open(options_.devices.front(), context);
    const Plan layouts(model_, *context_, plan_options(engine::kLayoutRows, true, false), nullptr, norms_);
    table_ = std::make_unique<engine::ParameterTable>(model_, layouts.parameter_layouts(), context_->compute_type(),
                                                      bucket_granularity(options_), vectors_first(options_));
    buckets_ = options_.bucket_bytes != 0
                   ? table_->buckets(options_.bucket_bytes)
                   : engine::automatic_buckets(options_, *table_, engine::default_bucket_bytes(*table_));
  }

  std::vector<MemoryUse> of(const std::vector<std::int64_t>& train, const std::vector<std::int64_t>& eval) {
    std::vector<MemoryUse> replicas;
    for (int rank = 0; rank < ranks_; ++rank) {
      MemoryUse use = of_weights(rank);
      add_rows(use, rank, train, eval);
      replicas.push_back(use);
    }
    return replicas;
  }

 private:
  engine::PlanOptions plan_options(std::int64_t rows, bool training, bool accumulate) const {
    return {rows,
            training,
            accumulate,
            options_.dropout,
            options_.batch_norm,
            scales_loss(),
            training && options_.loss == LossAt::local,
            shards_};
  }
  bool scales_loss() const { return options_.amp == Amp::float16; }
  std::size_t local_shards() const { return static_cast<std::size_t>(shards_ / ranks_); }

  MemoryUse of_weights(int rank) const {
    const std::size_t element = size_of(table_->type());
    MemoryUse use;
    use.weights = table_->bytes() + engine::Replica::low_bytes(*table_, *context_);
    use.gradients = table_->bytes() * local_shards();
    if (options_.reduce_dtype == DType::bf16 && (shards_ > 1 || ranks_of(options_) > 1))
      use.gradients += engine::RoundedGradients::bytes(buckets_, local_shards());
    for (const engine::Bucket& bucket : buckets_)
      if (update_.state)
        use.optimizer += static_cast<std::size_t>(engine::updated_by(bucket, options_.reduce, rank, ranks_).size()) *
                         element * static_cast<std::size_t>(kernels::slots_of(update_.rule));
    const std::size_t buffers = static_cast<std::size_t>(norms_.buffer_size()) * element;
    use.statistics = buffers + norms_.moments_bytes() * static_cast<std::size_t>(shards_);
    if (options_.ema_decay && rank == 0) use.average = table_->bytes() + buffers;
    use.other = sizeof(kernels::StepInputs) + sizeof(kernels::StepResults) * local_shards() +
                static_cast<std::size_t>(engine::norm_blocks(buckets_)) * sizeof(double);
    if (scales_loss()) use.other += sizeof(kernels::LossScaler);
    use.other += engine::ParameterGroups(options_.parameter_groups, *table_).map().size();
    return use;
  }

  // Processes the batches in the same order as DataParallel::prepare() and Replica::reserve().
  void add_rows(MemoryUse& use, int rank, const std::vector<std::int64_t>& train,
                const std::vector<std::int64_t>& eval) {
    const std::size_t copies = options_.batch_norm == BatchNormMode::sync && norms_.count() > 0 ? local_shards() : 1;
    std::size_t largest = 0;
    const auto place = [&](std::int64_t rows, bool training, bool accumulate) {
      if (training && rank == 0 && options_.loss == LossAt::gathered) add_gathered(rows);
      for (std::size_t local = 0; local < local_shards(); ++local) {
        const int shard = rank * static_cast<int>(local_shards()) + static_cast<int>(local);
        const std::int64_t own = engine::shard_of(rows, shard, shards_, options_.split).size();
        if (own == 0) continue;
        const Sizes sizes = sizes_of(plan_options(own, training, accumulate));
        if (sizes.bytes <= largest) continue;
        largest = sizes.bytes;
        use.workspace = sizes.workspace * copies;
        use.activations = sizes.bytes * copies - use.workspace;
      }
    };
    gathered_rows_ = 0;
    loss_workspace_ = 0;
    for (const std::int64_t batch : train)
      for (int micro = 0; micro < options_.grad_accum_steps; ++micro)
        place(engine::shard_of(batch, micro, options_.grad_accum_steps, Split::balanced).size(), true, micro > 0);
    for (const std::int64_t batch : eval) place(batch, false, false);
    const std::size_t logits = static_cast<std::size_t>(model_.output().numel()) * size_of(table_->type());
    use.other += static_cast<std::size_t>(gathered_rows_) * (2 * logits + sizeof(std::int32_t)) + loss_workspace_;
  }

  void add_gathered(std::int64_t rows) {
    gathered_rows_ = std::max(gathered_rows_, rows);
    const auto op = context_->make_op(kernels::SoftmaxCrossEntropy{rows, model_.output().numel(), scales_loss()});
    loss_workspace_ = std::max({loss_workspace_, op->workspace_bytes(), std::size_t{1}});
  }

  struct Sizes {
    std::size_t bytes = 0, workspace = 0;
  };
  Sizes sizes_of(const engine::PlanOptions& options) {
    for (const auto& [known, sizes] : plans_)
      if (known.batch == options.batch && known.training == options.training && known.accumulate == options.accumulate)
        return sizes;
    const Plan plan(model_, *context_, options, table_.get(), norms_);
    plans_.emplace_back(options, Sizes{engine::Replica::activation_bytes(plan), plan.workspace_bytes()});
    return plans_.back().second;
  }

  const Model& model_;
  const engine::UpdateKind update_;
  DataParallelOptions options_;
  int ranks_;
  engine::NormTable norms_;
  int shards_;
  std::unique_ptr<kernels::Context> context_;
  std::unique_ptr<engine::ParameterTable> table_;
  std::vector<engine::Bucket> buckets_;
  std::vector<std::pair<engine::PlanOptions, Sizes>> plans_;
  std::int64_t gathered_rows_ = 0;
  std::size_t loss_workspace_ = 0;
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
