#include "engine/step/memory/memory_plan.h"

#include <algorithm>

#include "engine/step/gradient_sync.h"
#include "engine/step/moving_average.h"
#include "kernels/comm/communicator.h"

namespace dp::engine {

BatchKind training_batch(std::int64_t rows, const DeviceImages& resident, const DataParallelOptions& options) {
  return {rows,
          true,
          options.loss == LossAt::gathered || options.own_loss,
          options.grad_accum_steps,
          resident.set,
          resident.augment};
}

// Only a pipeline evaluates in micro-batches.
BatchKind evaluation_batch(std::int64_t rows, const DeviceImages& resident, const DataParallelOptions& options) {
  const int micro_batches = options.pipeline.stages > 1 ? options.grad_accum_steps : 1;
  return {rows, false, options.own_loss.has_value(), micro_batches, resident.set, resident.augment};
}

BorderBytes BorderBytes::of(const Plan& plan) {
  BorderBytes bytes;
  const bool first = !plan.options().input, last = plan.options().last, training = plan.options().training;
  if (!last) bytes.output = plan.output().desc.layout.bytes;
  if (!first && training) bytes.input_grad = plan.input_grad().desc.layout.bytes;
  if (!first) bytes.input = plan.input().desc.layout.bytes;
  if (!last && training) bytes.output_grad = plan.output_grad().desc.layout.bytes;
  return bytes;
}

void BorderBytes::grow(const BorderBytes& other) {
  output = std::max(output, other.output);
  input_grad = std::max(input_grad, other.input_grad);
  input = std::max(input, other.input);
  output_grad = std::max(output_grad, other.output_grad);
}

std::size_t BorderBytes::bytes_in_links(bool two_queues) const {
  return kernels::Link::kSlots * (output + input_grad + (two_queues ? input + output_grad : 0));
}

PlanBytes PlanBytes::of(const Plan& plan) {
  ActivationArenaSize one;
  one.grow(plan, ReplicaOptions{});
  return {one.lane, plan.workspace_bytes(), plan.folded_bytes(), BorderBytes::of(plan)};
}

std::size_t BatchMemory::folded_bytes() const {
  std::size_t sum = 0;
  for (const auto& [rows, bytes] : folded) sum += bytes;
  return sum;
}

BatchMemory memory_of_batches(const ModelSetup& setup, int rank, int stage, const std::vector<BatchKind>& batches,
                              const std::function<PlanBytes(const PlanOptions&)>& bytes_of) {
  const ReplicaOptions replica = setup.replica_options(rank, stage);
  BatchMemory memory;
  for (const BatchKind& batch : batches)
    for_each_plan(setup, batch, rank, stage, [&](const PlanOptions& options) {
      const PlanBytes bytes = bytes_of(options);
      memory.border_bytes.grow(bytes.border_bytes);
      if (!options.training) memory.folded[options.batch] = bytes.folded;
      memory.activation_arena.grow(bytes.lane, bytes.workspace, bytes.border_bytes.input, replica);
    });
  return memory;
}

MemoryUse memory_of_run(const ModelSetup& setup, int rank, int stage, kernels::Context& context,
                        const std::vector<std::vector<Bucket>>& buckets, const UpdateKind& update) {
  const DataParallelOptions& o = setup.options;
  const Arenas::Sizes sizes = setup.sizes_of(rank, stage, context);
  const std::vector<Bucket>& own = buckets[static_cast<std::size_t>(stage)];
  MemoryUse use = sizes.use();
  if (o.reduce_dtype == DType::bf16 && setup.shards() > 1)
    use.gradients += RoundedGradients::bytes(own, static_cast<std::size_t>(setup.local_shards()));
  std::int64_t updated = 0;
  std::vector<kernels::Range> parts;
  for (const Bucket& bucket : own) {
    parts.push_back(updated_by(bucket, o.reduce, rank, setup.replica_count()));
    updated += parts.back().size();
  }
  use.optimizer = LocalOptimizer::state_bytes(update, updated, setup.element_bytes());
  if (kernels::tensor_work(update) != TensorWork::none)
    use.optimizer += TensorUpdate(context, *setup.stage(stage).table, updated_buckets(own, o.reduce, rank), parts,
                                  *setup.stage(stage).groups, update)
                         .bytes();
  // All stages hold the partial sums of the norm of the whole gradient.
  const bool joins = setup.pipelined() && setup.update_needs_whole_gradient();
  for (const std::vector<Bucket>& of_stage : buckets)
    if (joins || &of_stage == &own) use.other += norm_bytes(of_stage);
  use.other += setup.stage(stage).groups->map().size();
  if (o.ema_decay && rank == 0) use.average = MovingAverage::bytes(sizes);
  if (rank == 0 && !context.host_accessible())
    use.snapshot = DeviceCopy::bytes(*setup.stage(stage).table, (o.ema_decay ? 2 : 1) + slot_names(update).size(),
                                     (o.ema_decay ? 2 : 1) * aligned(sizes.running_statistics));
  return use;
}

}  // namespace dp::engine
