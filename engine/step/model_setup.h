// The model, its options and its stages, which all parts of a DataParallel read. They do not change after construction.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dp/loader.h"
#include "engine/base/split.h"
#include "engine/layers/nodes.h"
#include "engine/layers/parameters.h"
#include "engine/observe/failpoint.h"
#include "engine/optimizer/optimizer.h"
#include "engine/plan/plan.h"
#include "engine/step/arenas.h"
#include "engine/step/pipeline/stage_split.h"
#include "engine/step/resolved_options.h"

namespace dp::engine {

// Rows of the plan that chooses the parameter layouts. The layouts hardly depend on the batch size.
inline constexpr std::int64_t kLayoutRows = 32;

// A stage consists of consecutive layers of the model. Each replica holds it on one device. Without a pipeline, there
// is one stage: the whole model.
struct Stage {
  Stage(Model part, const DataParallelOptions& options);

  const Model model;
  const NormTable norms;
  std::unique_ptr<ParameterTable> table;
  std::unique_ptr<ParameterGroups> groups;
  std::vector<AllGather> forward_all_gathers, backward_all_gathers;  // for training with synchronised normalisation
  std::vector<AllGather> pooled_all_gathers;                         // for pooled running statistics
  // PlanStep::ready_from of each segment of backward, in order. Replicas without rows use it, so that every device
  // makes the calls of both communicators in the same order.
  std::vector<std::vector<int>> ready_in_segment;
};

using OpenContext = std::function<std::unique_ptr<kernels::Context>()>;

struct ModelSetup {
  ModelSetup(const Model& m, DataParallelOptions resolved) : model(m), options(std::move(resolved)) {}

  // Makes the stages. The ops of `context`, on a device of the replicas' kind, choose the parameter layouts. `open`
  // opens further contexts of the first device, to measure layers on. Throws Error(usage) if the model has no
  // parameters, or if the options do not fit the model.
  void make_stages(kernels::Context& context, const OpenContext& open);

  int replica_count() const { return ranks_of(options); }      // on all ranks
  int stage_count() const { return options.pipeline.stages; }  // devices of one replica
  bool pipelined() const { return stage_count() > 1; }
  int shards() const { return shards_of(options); }                // of a batch, over all replicas
  int local_shards() const { return shards() / replica_count(); }  // of one replica
  bool scales_loss() const { return options.amp == Amp::float16; }
  bool update_needs_whole_gradient() const {
    return options.clip_grad_norm || options.on_nonfinite == OnNonfinite::skip || scales_loss();
  }
  bool folds_norms() const {
    return options.fold_norms == FoldNorms::always ||
           (options.fold_norms == FoldNorms::automatic && !options.deterministic);
  }
  const Stage& stage(int index) const { return stages[static_cast<std::size_t>(index)]; }
  bool is_last(int stage) const { return stage + 1 == stage_count(); }
  bool recomputes(int stage) const {
    const Recompute recompute = options.pipeline.recompute;
    return recompute == Recompute::stage || (recompute == Recompute::except_last && !is_last(stage));
  }

  // The options of a stage's plan, without PlanOptions::input. `gathers_logits`: the master gathers the logits of all
  // replicas. If it does, or if a failpoint plants NaN, one op computes the logits and another one the loss.
  PlanOptions plan_options(int stage, std::int64_t rows, bool training, bool accumulate, bool gathers_logits) const {
    return {.batch = rows,
            .training = training,
            .accumulate = accumulate,
            .dropout = options.dropout,
            .norm = options.batch_norm,
            .output_loss = output_loss(training),
            .sample_weights = training && options.sample_weights,
            .scales_loss = scales_loss(),
            .joins_loss = training && !gathers_logits && !failpoints.plants_nan(),
            .shards = shards(),
            .last = is_last(stage),
            .split_backward = pipelined() && options.pipeline.schedule == PipelineSchedule::zero_bubble,
            .folds_norms = !training && folds_norms(),
            .frozen = pipelined() ? std::vector<bool>() : frozen_};
  }
  ReplicaOptions replica_options(int rank, int stage) const;
  Arenas::Sizes sizes_of(int rank, int stage, const kernels::Context& context) const;
  // The rows of a batch or micro-batch that belong to shard `shard` of replica `rank`.
  kernels::Range rows_of(std::int64_t batch, int rank, int shard) const {
    if (options.process_group) return {0, batch};
    return rows_of_shard(batch, rank * local_shards() + shard);
  }
  // The rows of shard `shard`, with the shards of all replicas numbered in order. Not with a process group.
  kernels::Range rows_of_shard(std::int64_t batch, int shard) const {
    return options.split_weights.empty() ? shard_of(batch, shard, shards(), options.split)
                                         : shard_of(batch, shard, options.split_weights);
  }
  // The rows of micro-batch `micro` of a step.
  kernels::Range rows_of_micro_batch(std::int64_t rows, int micro) const {
    return shard_of(rows, micro, options.grad_accum_steps, Split::balanced);
  }
  // The buckets of a stage's gradients, in the order in which they become ready. `usual_bytes`: their size unless the
  // options set one. Without a pipeline, no bucket begins or ends with frozen parameters.
  std::vector<Bucket> buckets_of(const Stage& stage, std::size_t usual_bytes) const;
  DType type() const { return stages.front().table->type(); }  // of parameters and their gradients
  std::size_t element_bytes() const { return size_of(type()); }
  // The loss of outputs that have targets. None: batches have class numbers.
  std::optional<OutputLoss> output_loss(bool training) const {
    return training && options.soft_targets ? SoftCrossEntropyLoss{} : options.output_loss;
  }
  // Of one sample: its class number, or the targets of its outputs.
  std::size_t target_bytes(bool training) const {
    return output_loss(training) ? static_cast<std::size_t>(target_columns(training)) * sizeof(float)
                                 : sizeof(std::int32_t);
  }
  std::size_t target_bytes(const Batch& batch) const {
    const bool weighted = !batch.targets.empty() && batch.targets.shape()[1] > model.output().numel();
    return target_bytes(/*training=*/weighted || (options.soft_targets && !batch.targets.empty()));
  }
  std::int64_t target_columns(bool training) const {
    return model.output().numel() + (training && options.sample_weights);
  }
  std::size_t parameter_bytes() const;           // of one copy of all parameters
  const Norm* first_norm_on_1x1_images() const;  // which have one value per channel; null if there is none

  const Model model;
  const DataParallelOptions options;  // resolved
  const Failpoints failpoints;
  std::vector<Cut> cuts;     // between the stages
  double balance = 1;        // mean modelled or measured time of the stages, divided by that of the slowest
  std::deque<Stage> stages;  // in forward order

 private:
  // Sets `cuts`: those that the options name, or else cuts for stages of equal time.
  void choose_cuts(kernels::Context& context, const OpenContext& open);

  std::vector<bool> frozen_;  // as PlanOptions::frozen
};

}  // namespace dp::engine
