// What every part of a DataParallel reads and none changes once the replicas exist.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/base/split.h"
#include "engine/observe/failpoint.h"
#include "engine/optimizer/parameter_groups.h"
#include "engine/parallel/resolved_options.h"
#include "engine/plan/norms.h"
#include "engine/plan/parameters.h"
#include "engine/plan/plan.h"
#include "engine/replica/replica.h"

namespace dp::engine {

// Rows of the plan that chooses the parameter layouts. The layouts hardly depend on the batch size.
inline constexpr std::int64_t kLayoutRows = 32;

struct ModelSetup {
  ModelSetup(const Model& m, DataParallelOptions resolved) : model(m), options(std::move(resolved)), norms(model) {
    if (options.batch_norm == BatchNormMode::sync) {
      forward_gathers = engine::forward_gathers(norms, shards());
      backward_gathers = engine::backward_gathers(norms, shards());
    }
    if (options.batch_norm == BatchNormMode::pooled) pooled_gathers = engine::forward_gathers(norms, shards());
  }

  int size() const { return ranks_of(options); }          // replicas of all ranks
  int shards() const { return shards_of(options); }       // of a batch, over all replicas
  int local_shards() const { return shards() / size(); }  // of one replica
  bool scales_loss() const { return options.amp == Amp::float16; }
  bool update_waits_for_gradient() const {
    return options.clip_grad_norm || options.on_nonfinite == OnNonfinite::skip || scales_loss();
  }
  // `gathers`: the master gathers the logits. One op may then not compute both logits and loss. The same holds with
  // failpoints, which may set a logit to NaN.
  PlanOptions plan_options(std::int64_t rows, bool training, bool accumulate, bool gathers) const {
    return {rows,
            training,
            accumulate,
            options.dropout,
            options.batch_norm,
            scales_loss(),
            training && !gathers && failpoints.empty(),
            shards()};
  }
  ReplicaOptions replica_options(int rank) const {
    const bool in_turns = !forward_gathers.empty() && local_shards() > 1;
    return {rank, local_shards(), shards(), in_turns, scales_loss()};
  }
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
  kernels::Range micro_batch(std::int64_t rows, int micro) const {
    return shard_of(rows, micro, options.grad_accum_steps, Split::balanced);
  }
  std::size_t element_bytes() const { return size_of(table->type()); }

  const Model model;
  DataParallelOptions options;  // resolved
  const Failpoints failpoints;
  const NormTable norms;
  std::unique_ptr<ParameterTable> table;
  std::unique_ptr<ParameterGroups> groups;
  std::vector<Gather> forward_gathers, backward_gathers;  // for training with synchronised normalisation
  std::vector<Gather> pooled_gathers;                     // for pooled running statistics
  // PlanStep::ready_from of each segment of backward, in order. Used by replicas without rows: the calls of the two
  // communicators must have the same order on every device.
  std::vector<std::vector<int>> ready_in_segment;
};

}  // namespace dp::engine
