// The memory of a worker, by purpose, computed from the plans before it is allocated. memory_of_batches() is for the
// estimate of memory and for the refusal of batches that do not fit. memory_of_run() is for the estimate; its figures
// come from the classes that allocate this memory.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "dp/loader.h"
#include "dp/memory.h"
#include "engine/optimizer/optimizer.h"
#include "engine/step/model_setup.h"
#include "engine/step/plan_runner.h"

namespace dp::engine {

// Plans and memory are prepared once for each kind of batch.
struct BatchKind {
  std::int64_t rows;  // of the batch, in this process
  bool training;
  bool gathers_logits;  // the master gathers the logits of all replicas
  int micro_batches;
  std::shared_ptr<const ImageSet> set{};  // source of the images; null: host memory
  bool augment = false;                   // on the device, with `set`
  auto operator<=>(const BatchKind&) const = default;

  std::int64_t micro_rows(int micro) const { return shard_of(rows, micro, micro_batches, Split::balanced).size(); }
};

BatchKind training_batch(std::int64_t rows, const DeviceImages& resident, const DataParallelOptions& options);
BatchKind evaluation_batch(std::int64_t rows, const DeviceImages& resident, const DataParallelOptions& options);

// For each micro-batch, and each shard of replica `rank` that has rows in it: calls f with the options of the stage's
// plan.
template <typename F>
void for_each_plan(const ModelSetup& setup, const BatchKind& batch, int rank, int stage, F&& f) {
  for (int micro = 0; micro < batch.micro_batches; ++micro)
    for (int shard = 0; shard < setup.local_shards(); ++shard)
      if (const std::int64_t own = setup.rows_of(batch.micro_rows(micro), rank, shard).size(); own > 0)
        f(setup.plan_options(stage, own, batch.training, batch.training && micro > 0, batch.gathers_logits));
}

// Bytes of the largest tensors that a stage sends to its neighbours and receives from them.
struct BorderBytes {
  std::size_t output = 0, input_grad = 0;  // sent
  std::size_t input = 0, output_grad = 0;  // received

  static BorderBytes of(const Plan& plan);
  void grow(const BorderBytes& other);
  // Bytes of the links on the stage's device. `two_queues`: Backend::links_have_two_queues().
  std::size_t bytes_in_links(bool two_queues) const;
};

// The bytes of one plan.
struct PlanBytes {
  std::size_t lane = 0, workspace = 0, folded = 0;
  BorderBytes border_bytes;

  static PlanBytes of(const Plan& plan);
};

// What a worker needs for some kinds of batch.
struct BatchMemory {
  ActivationArenaSize activation_arena;
  std::map<std::int64_t, std::size_t> folded;  // folded weights, by the rows of the evaluation plan that has them
  BorderBytes border_bytes;

  std::size_t folded_bytes() const;
};
// `bytes_of`: the bytes of the worker's plan with these options.
BatchMemory memory_of_batches(const ModelSetup& setup, int rank, int stage, const std::vector<BatchKind>& batches,
                              const std::function<PlanBytes(const PlanOptions&)>& bytes_of);

// What a worker needs for the whole run: weights, gradients, running statistics, the optimizer's state, the moving
// average. `buckets`: of every stage.
MemoryUse memory_of_run(const ModelSetup& setup, int rank, int stage, kernels::Context& context,
                        const std::vector<std::vector<Bucket>>& buckets, const UpdateKind& update);

}  // namespace dp::engine
