// The step, in the order in which it happens:
//
//   train             wait for the weights of the last step, upload the numbers that change
//     scatter         give each shard its rows of the micro-batch
//     train_micro_batch, as a graph once the same kind of step has run before
//       forward       all shards; batch normalisation may exchange statistics between segments
//       loss          where the logits are, or on the master
//       backward      a bucket of gradients is reduced, updated and sent back as soon as it is complete (gradient_sync)
//       update        here if it must see the whole gradient first, then the moving average
#include "engine/parallel/training_step.h"

#include <fmt/format.h>

#include <limits>

namespace dp::engine {

using kernels::Range;

TrainingStep::TrainingStep(ReplicaSet& team, StepGraphs& graphs, GatheredLoss& gathered_loss, MovingAverage* average)
    : team_(team), setup_(team.setup), graphs_(graphs), gathered_loss_(gathered_loss), average_(average) {}

void TrainingStep::train(Replica& replica, GradientSync& gradient_sync, const Batch& batch,
                         const kernels::StepInputs& inputs, const UpdateKind& update) {
  const bool on_master = setup_.options.loss == LossAt::gathered;
  replica.begin_timing(team_.step);
  gradient_sync.wait_for_weights();
  replica.upload_inputs(inputs);
  gradient_sync.optimizer().use(update);
  gradient_sync.begin(team_.step, !setup_.update_waits_for_gradient());
  for (int micro = 0; micro < setup_.options.grad_accum_steps; ++micro) {
    const Range rows = setup_.micro_batch(batch.size(), micro);
    scatter(replica, batch, rows, /*training=*/true, /*accumulate=*/micro > 0, on_master);
    if (on_master) gathered_loss_.upload_labels(replica, batch, rows);
    graphs_.run(team_.local(replica), static_cast<std::size_t>(micro),
                [&] { train_micro_batch(replica, gradient_sync, rows.size(), micro); });
  }
  replica.context().flush();
  replica.throttle();
  replica.end_timing();
  check_finite(replica);
}

// Forward to backward; for the last micro-batch also the update. Reads no host memory.
void TrainingStep::train_micro_batch(Replica& replica, GradientSync& gradient_sync, std::int64_t rows, int micro) {
  const bool accumulate = micro > 0, last = micro + 1 == setup_.options.grad_accum_steps;
  const int together = replica.shards_together();
  replica.make_images();
  for (int first = 0; first < replica.local_shards(); first += together) {
    const ShardRange shards{first, first + together};
    forward(replica, shards, /*training=*/true);
    if (setup_.options.loss == LossAt::gathered)
      loss_on_master(replica, rows);
    else
      loss(replica, shards);
    check_finite(replica);  // before the reduction spreads a NaN to all replicas
    backward(replica, gradient_sync, shards, accumulate, last);
  }
  if (!last) return;
  replica.enter(Phase::update);
  if (setup_.update_waits_for_gradient()) gradient_sync.update(/*norm=*/true);
  update_average(replica, gradient_sync);
}

// Sets the inputs of this replica's shards. A shard without rows has no plan and computes nothing.
void TrainingStep::scatter(Replica& replica, const Batch& batch, Range rows, bool training, bool accumulate,
                           bool gathers) {
  replica.enter(Phase::scatter);
  fails(replica, Phase::scatter);
  for (int shard = 0; shard < replica.local_shards(); ++shard) {
    const Range own = setup_.rows_of(rows.size(), replica.rank(), shard);
    const Plan* plan =
        own.size() > 0 ? &replica.plan(setup_.plan_options(own.size(), training, accumulate, gathers)) : nullptr;
    replica.bind(shard, plan, input_of(batch, {rows.begin + own.begin, rows.begin + own.end}));
  }
}

void TrainingStep::forward(Replica& replica, ShardRange shards, bool training) {
  replica.enter(Phase::forward);
  const bool nan = fails(replica, Phase::forward);
  static const std::vector<Gather> none;
  run_stage(
      replica, shards, &Plan::forward, training ? setup_.forward_gathers : none, [](int, const PlanStep&) {},
      [](std::size_t) {});
  if (training && shards.end == replica.local_shards()) update_running_statistics(replica);
  if (const Plan* plan = replica.select(shards.begin); nan && plan != nullptr) plant_nan(replica, plan->logits());
}

// Updates the master's running statistics, from its first shard or from all shards (options.batch_norm).
void TrainingStep::update_running_statistics(Replica& replica) {
  if (setup_.norms.count() == 0) return;
  if (setup_.options.batch_norm == BatchNormMode::pooled) {
    for (int shard = 0; shard < replica.local_shards(); ++shard)
      if (replica.select(shard) == nullptr)
        for (const Gather& moments : setup_.pooled_gathers) replica.zero_part(moments);
    for (const Gather& moments : setup_.pooled_gathers)
      if (setup_.size() > 1)
        team_.io_of(replica).all_gather_parts(replica.at({Space::moments, moments.offset}),
                                              moments.part_bytes * static_cast<std::size_t>(replica.local_shards()),
                                              replica.compute());
  }
  const Plan* plan = replica.select(0);
  if (replica.rank() == 0 && plan != nullptr) replica.run(plan->running());
}

void TrainingStep::loss(Replica& replica, ShardRange shards) {
  replica.enter(Phase::loss);
  for (int shard = shards.begin; shard < shards.end; ++shard)
    if (const Plan* plan = replica.select(shard)) replica.run(plan->loss());
}

void TrainingStep::loss_on_master(Replica& replica, std::int64_t rows) {
  replica.enter(Phase::loss);
  fails(replica, Phase::loss);
  gathered_loss_.run(replica, rows);
}

// Reports each bucket as ready as soon as the gradients of all shards are complete.
void TrainingStep::backward(Replica& replica, GradientSync& gradient_sync, ShardRange shards, bool accumulate,
                            bool last) {
  replica.enter(Phase::backward);
  if (const Plan* plan = replica.select(shards.begin); fails(replica, Phase::backward) && plan != nullptr)
    plant_nan(replica, plan->logits_grad());
  int working = 0;
  for (int shard = 0; shard < replica.local_shards(); ++shard) working += replica.plan_of(shard) != nullptr;
  // Shards without rows are last. Their gradients must be zero before the last shard with rows reports buckets as
  // ready.
  for (int shard = working; shard < replica.local_shards() && shards.begin == 0 && !accumulate; ++shard)
    replica.zero_gradients(shard);
  run_stage(
      replica, shards, &Plan::backward, setup_.backward_gathers,
      [&](int shard, const PlanStep& step) {
        if (last && shard + 1 == working && step.ready_from >= 0) gradient_sync.entries_ready(step.ready_from);
      },
      [&](std::size_t segment) {
        if (!last || segment >= setup_.ready_in_segment.size()) return;
        for (const int entry : setup_.ready_in_segment[segment]) gradient_sync.entries_ready(entry);
      });
  if (last && shards.end == replica.local_shards())
    gradient_sync.entries_ready(0);  // remaining buckets; without rows, all
}

void TrainingStep::update_average(Replica& replica, GradientSync& gradient_sync) {
  if (average_ == nullptr || replica.rank() != 0) return;
  gradient_sync.wait_for_weights();
  average_->update();
}

// Runs one stage of the plans of some shards. The stage is split into segments at each statistic that needs all shards.
// An all-gather between replicas ends each segment but the last. after(shard, step) runs after each step of a plan.
// idle(segment) runs in segment `segment` on a replica without rows, before the segment's all-gather.
template <typename After, typename Idle>
void TrainingStep::run_stage(Replica& replica, ShardRange shards, const std::vector<PlanStep>& (Plan::*stage)() const,
                             const std::vector<Gather>& gathers, After&& after, Idle&& idle) {
  for (std::size_t segment = 0; segment <= gathers.size(); ++segment) {
    for (int shard = shards.begin; shard < shards.end; ++shard) {
      if (const Plan* plan = replica.select(shard))
        replica.run_segment((plan->*stage)(), segment == 0, [&](const PlanStep& step) { after(shard, step); });
      else if (segment < gathers.size())
        replica.zero_part(gathers[segment]);
    }
    if (replica.plan_of(0) == nullptr) idle(segment);
    if (segment == gathers.size() || setup_.size() == 1) continue;
    const std::size_t own = gathers[segment].part_bytes * static_cast<std::size_t>(replica.local_shards());
    team_.io_of(replica).all_gather_parts(replica.at({Space::moments, gathers[segment].offset}), own,
                                          replica.compute());
  }
}

void TrainingStep::evaluate(Replica& replica, GradientSync& gradient_sync, const Batch& batch,
                            const kernels::StepInputs& inputs, LogitsStore* store) {
  gradient_sync.wait_for_weights();
  replica.upload_inputs(inputs);
  scatter(replica, batch, {0, batch.size()}, /*training=*/false, /*accumulate=*/false, /*gathers=*/false);
  replica.make_images();
  const int together = replica.shards_together();
  for (int first = 0; first < replica.local_shards(); first += together) {
    const ShardRange shards{first, first + together};
    forward(replica, shards, /*training=*/false);
    loss(replica, shards);
    for (int shard = shards.begin; shard < shards.end && store != nullptr; ++shard)
      if (const Plan* plan = replica.select(shard))
        store->append(*plan, input_of(batch, setup_.rows_of(batch.size(), replica.rank(), shard)));
  }
  replica.context().flush();
  replica.throttle();
}

void TrainingStep::forward_alone(Replica& replica, GradientSync& gradient_sync, const Batch& batch, std::int64_t rows,
                                 bool training, const kernels::StepInputs& inputs) {
  gradient_sync.wait_for_weights();
  replica.upload_inputs(inputs);
  scatter(replica, batch, {0, rows}, training, /*accumulate=*/false, /*gathers=*/true);
  forward(replica, {}, training);
  gathered_loss_.gather_logits(replica, rows);
  replica.context().flush();
  replica.compute().synchronize();
}

void TrainingStep::backward_alone(Replica& replica, GradientSync& gradient_sync, const Tensor& logits_grad,
                                  std::int64_t rows) {
  gradient_sync.begin(team_.step, /*per_bucket=*/false);
  const Range own = setup_.rows_of(rows, replica.rank(), 0);
  if (const Plan* plan = replica.select(0)) {
    const Tensor part = logits_grad.rows(own.begin, own.end);
    replica.compute().copy(replica.at(plan->logits_grad()), part.raw(), part.bytes());
  }
  backward(replica, gradient_sync, {}, /*accumulate=*/false, /*last=*/true);
  replica.context().flush();
  gradient_sync.synchronize();
  replica.compute().synchronize();
}

void TrainingStep::update_alone(Replica& replica, GradientSync& gradient_sync, const kernels::StepInputs& inputs,
                                const UpdateKind& update) {
  gradient_sync.wait_for_weights();
  replica.upload_inputs(inputs);
  gradient_sync.optimizer().use(update);
  gradient_sync.begin(team_.step, /*per_bucket=*/false);
  gradient_sync.update(setup_.update_waits_for_gradient());
  update_average(replica, gradient_sync);
  replica.context().flush();
  check_finite(replica);
}

void TrainingStep::number_rows(std::int64_t rows) {
  for (auto next = static_cast<std::int64_t>(row_numbers_.size()); next < rows; ++next) row_numbers_.push_back(next);
}

ShardInput TrainingStep::input_of(const Batch& batch, Range rows) const {
  ShardInput input;
  input.rows = rows.size();
  if (batch.resident.set)
    input.resident = &batch.resident;
  else
    input.images = batch.images.data<float>() + rows.begin * setup_.model.input().numel();
  if (!batch.labels.empty()) input.labels = batch.labels.data<std::int32_t>() + rows.begin;
  input.samples = (batch.samples.empty() ? row_numbers_.data() : batch.samples.data<std::int64_t>()) + rows.begin;
  return input;
}

// With OnNonfinite::abort: Error(nonfinite) if a loss or gradient is not finite. Checks only if the host can read the
// results and the device is idle; take_stats() always checks.
void TrainingStep::check_finite(Replica& replica) {
  kernels::Context& context = replica.context();
  if (setup_.options.on_nonfinite != OnNonfinite::abort || !context.host_accessible() || !context.idle()) return;
  std::int64_t samples = 0;
  for (int shard = 0; shard < replica.local_shards(); ++shard) samples += replica.results()[shard].nonfinite;
  if (samples == 0 && replica.results()->grad_nonfinite == 0) return;
  replica.enter(samples ? Phase::loss : Phase::update);
  throw Error(ErrorCode::nonfinite, samples ? fmt::format("the loss of {} samples is not finite", samples)
                                            : std::string("a gradient is not finite"));
}

void TrainingStep::plant_nan(Replica& replica, Ref place) {
  const double nan64 = std::numeric_limits<double>::quiet_NaN();
  const float nan32 = std::numeric_limits<float>::quiet_NaN();
  const bool wide = setup_.table->type() == DType::f64;
  replica.compute().upload(replica.at(place), wide ? static_cast<const void*>(&nan64) : &nan32, setup_.element_bytes());
}

}  // namespace dp::engine
