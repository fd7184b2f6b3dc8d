// Kinds of batch. Plans and memory are prepared once per kind.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "dp/loader.h"
#include "engine/step/model_setup.h"

namespace dp::engine {

struct BatchKind {
  std::int64_t rows;
  bool training, gathers;  // gathers: the master gathers the logits
  int micro_batches;
  std::shared_ptr<const ImageSet> set{};  // source of the images; null: host memory
  bool augment = false;
  auto operator<=>(const BatchKind&) const = default;

  std::int64_t micro_rows(int micro) const { return shard_of(rows, micro, micro_batches, Split::balanced).size(); }
};

inline BatchKind training_batch(std::int64_t rows, const DeviceImages& resident, const DataParallelOptions& options) {
  return {rows, true, options.loss == LossAt::gathered, options.grad_accum_steps, resident.set, resident.augment};
}
// Only a pipeline evaluates in micro-batches.
inline BatchKind evaluated_batch(std::int64_t rows, const DeviceImages& resident, const DataParallelOptions& options) {
  const int micro_batches = options.pipeline.stages > 1 ? options.grad_accum_steps : 1;
  return {rows, false, false, micro_batches, resident.set, resident.augment};
}

// Calls f(options) for a stage's plan of each shard of replica `rank` that has rows, micro-batch by micro-batch.
template <typename F>
void for_each_plan(const ModelSetup& setup, const BatchKind& batch, int rank, int stage, F&& f) {
  for (int micro = 0; micro < batch.micro_batches; ++micro)
    for (int shard = 0; shard < setup.local_shards(); ++shard)
      if (const std::int64_t own = setup.rows_of(batch.micro_rows(micro), rank, shard).size(); own > 0)
        f(setup.plan_options(stage, own, batch.training, batch.training && micro > 0, batch.gathers));
}

}  // namespace dp::engine
