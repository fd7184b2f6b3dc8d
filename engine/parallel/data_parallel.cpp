// One step of data-parallel training, in order. A function with a Replica parameter runs on that replica's worker
// thread. It only enqueues work; streams and events order it.
#include "dp/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

using engine::GradientSync;
using engine::Phase;
using engine::Plan;
using engine::Replica;
using kernels::Range;

namespace {

void check_batch(const Batch& batch, const Model& model) {
  if (batch.global_size() < 1) throw Error(ErrorCode::usage, "a batch needs at least one sample");
  const std::int64_t images = batch.size();
  const Shape& shape = batch.resident.set ? batch.resident.set->images.shape() : batch.images.shape();
  check_images(shape, model);
  const auto rows = [](const Tensor& t) { return t.empty() || t.shape().rank() == 0 ? std::int64_t{0} : t.shape()[0]; };
  if (rows(batch.labels) != images)
    throw Error(ErrorCode::usage, fmt::format("a batch of {} images and {} labels", images, rows(batch.labels)));
  if (!batch.samples.empty() && rows(batch.samples) != images)
    throw Error(ErrorCode::usage,
                fmt::format("a batch of {} images and {} sample indices", images, rows(batch.samples)));
  if (!batch.resident.set || images == 0) return;
  for (const std::int64_t sample : batch.samples.span<std::int64_t>())
    if (sample < 0 || sample >= shape[0])
      throw Error(ErrorCode::usage, fmt::format("a batch of sample {} of a set of {}", sample, shape[0]));
}

}  // namespace

void check_images(const Shape& shape, const Model& model) {
  if (shape.without_first() != model.input())
    throw Error(ErrorCode::usage, fmt::format("images of shape {} do not fit model '{}', which reads {} per sample",
                                              to_string(shape), model.name(), to_string(model.input())));
}

void DataParallel::train_step(const Batch& batch, const Optimizer& optimizer) {
  State& s = *state_;
  engine::check(optimizer);
  check_batch(batch, s.model);
  s.require_two_values(batch.size(), batch.global_size(), s.options.grad_accum_steps);
  s.number_rows(batch.size());
  s.forward_rows = 0;
  if (s.begun) s.end_step();
  s.reserve(s.training_batch(batch.size(), batch.resident));
  s.reserve_state(optimizer);
  s.graphs->begin_step({batch.size(), batch.global_size(), engine::kind_of(optimizer), batch.resident.set != nullptr},
                       s.options.grad_accum_steps, s.step_is_eager());
  s.on_replicas(
      [&](Replica& replica, GradientSync& gradient_sync) { s.train(replica, gradient_sync, batch, optimizer); });
  s.graphs->end_step();
  s.end_step();
  ++s.updates;
  s.batches_tracked += std::min<std::int64_t>(s.options.grad_accum_steps, batch.size());  // only those with rows
  s.buffers_behind = true;
  if (s.options.check_replicas && !replicas_identical())
    throw Error(ErrorCode::device, fmt::format("the replicas' weights differ after step {}", s.step));
}

void DataParallel::State::train(Replica& replica, GradientSync& gradient_sync, const Batch& batch,
                                const Optimizer& optimizer) {
  replica.begin_timing(step);
  gradient_sync.wait_for_weights();
  replica.upload_inputs(step_inputs(batch.global_size(), &optimizer));
  gradient_sync.optimizer().use(engine::kind_of(optimizer));
  gradient_sync.begin(step, !update_waits_for_gradient());
  for (int micro = 0; micro < options.grad_accum_steps; ++micro) {
    const Range rows = engine::shard_of(batch.size(), micro, options.grad_accum_steps, Split::balanced);
    scatter(replica, batch, rows, /*training=*/true, /*accumulate=*/micro > 0, options.loss == LossAt::gathered);
    upload_labels(replica, batch, rows);
    graphs->run(local(replica), static_cast<std::size_t>(micro),
                [&] { train_micro_batch(replica, gradient_sync, rows.size(), micro); });
  }
  replica.context().flush();
  replica.throttle();
  replica.end_timing();
  check_finite(replica);
}

void DataParallel::State::train_micro_batch(Replica& replica, GradientSync& gradient_sync, std::int64_t rows,
                                            int micro) {
  const bool accumulate = micro > 0, last = micro + 1 == options.grad_accum_steps;
  const int together = replica.shards_together();
  replica.make_images();
  for (int first = 0; first < replica.local_shards(); first += together) {
    const ShardRange shards{first, first + together};
    forward(replica, shards, /*training=*/true);
    if (options.loss == LossAt::gathered)
      gathered_loss(replica, rows);
    else
      local_loss(replica, shards);
    check_finite(replica);  // before the reduction spreads a NaN to all replicas
    backward(replica, gradient_sync, shards, accumulate, last);
  }
  if (!last) return;
  replica.enter(Phase::update);
  if (update_waits_for_gradient()) gradient_sync.update(/*norm=*/true);
  update_average(replica, gradient_sync);
}

// Sets the inputs of this replica's shards. A shard without rows has no plan and computes nothing.
void DataParallel::State::scatter(Replica& replica, const Batch& batch, Range rows, bool training, bool accumulate,
                                  bool gathers) {
  replica.enter(Phase::scatter);
  failpoints.hit(Phase::scatter, replica.rank(), step);
  for (int shard = 0; shard < replica.local_shards(); ++shard) {
    const Range own = rows_of(rows.size(), replica, shard);
    const Plan* plan =
        own.size() > 0 ? &replica.plan(plan_options(own.size(), training, accumulate, gathers)) : nullptr;
    replica.bind(shard, plan, input_of(batch, {rows.begin + own.begin, rows.begin + own.end}));
  }
}

// Runs one stage of the plans of some shards. The stage is split into segments at each statistic that needs all shards.
// An all-gather between replicas ends each segment but the last. after(shard, step) runs after each step of a plan.
// idle(segment) runs in segment `segment` on a replica without rows, before the segment's all-gather.
template <typename After, typename Idle>
void DataParallel::State::run_stage(Replica& replica, ShardRange shards,
                                    const std::vector<engine::PlanStep>& (Plan::*stage)() const,
                                    const std::vector<engine::Gather>& gathers, After&& after, Idle&& idle) {
  for (std::size_t segment = 0; segment <= gathers.size(); ++segment) {
    for (int shard = shards.begin; shard < shards.end; ++shard) {
      if (const Plan* plan = replica.select(shard))
        replica.run_segment((plan->*stage)(), segment == 0, [&](const engine::PlanStep& s) { after(shard, s); });
      else if (segment < gathers.size())
        replica.zero_part(gathers[segment]);
    }
    if (replica.plan_of(0) == nullptr) idle(segment);
    if (segment == gathers.size() || size() == 1) continue;
    const std::size_t own = gathers[segment].part_bytes * static_cast<std::size_t>(replica.local_shards());
    io_of(replica).all_gather_parts(replica.at({engine::Space::moments, gathers[segment].offset}), own,
                                    replica.compute());
  }
}

void DataParallel::State::forward(Replica& replica, ShardRange shards, bool training) {
  replica.enter(Phase::forward);
  const bool nan = failpoints.hit(Phase::forward, replica.rank(), step);
  static const std::vector<engine::Gather> none;
  run_stage(
      replica, shards, &Plan::forward, training ? forward_gathers : none, [](int, const engine::PlanStep&) {},
      [](std::size_t) {});
  if (training && shards.end == replica.local_shards()) update_running_statistics(replica);
  if (const Plan* plan = replica.select(shards.begin); nan && plan != nullptr) plant_nan(replica, plan->logits());
}

// Updates the master's running statistics, from its first shard or from all shards (options.batch_norm).
void DataParallel::State::update_running_statistics(Replica& replica) {
  if (norms.count() == 0) return;
  if (options.batch_norm == BatchNormMode::pooled) {
    for (int shard = 0; shard < replica.local_shards(); ++shard)
      if (replica.select(shard) == nullptr)
        for (const engine::Gather& moments : pooled_gathers) replica.zero_part(moments);
    for (const engine::Gather& moments : pooled_gathers)
      if (size() > 1)
        io_of(replica).all_gather_parts(replica.at({engine::Space::moments, moments.offset}),
                                        moments.part_bytes * static_cast<std::size_t>(replica.local_shards()),
                                        replica.compute());
  }
  const Plan* plan = replica.select(0);
  if (replica.rank() == 0 && plan != nullptr) replica.run(plan->running());
}

void DataParallel::State::local_loss(Replica& replica, ShardRange shards) {
  replica.enter(Phase::loss);
  for (int shard = shards.begin; shard < shards.end; ++shard)
    if (const Plan* plan = replica.select(shard)) replica.run(plan->loss());
}

// Reports each bucket as ready as soon as the gradients of all shards are complete.
void DataParallel::State::backward(Replica& replica, GradientSync& gradient_sync, ShardRange shards, bool accumulate,
                                   bool last) {
  replica.enter(Phase::backward);
  if (const Plan* plan = replica.select(shards.begin);
      failpoints.hit(Phase::backward, replica.rank(), step) && plan != nullptr)
    plant_nan(replica, plan->logits_grad());
  int working = 0;
  for (int shard = 0; shard < replica.local_shards(); ++shard) working += replica.plan_of(shard) != nullptr;
  // Shards without rows are last. Their gradients must be zero before the last shard with rows reports buckets as
  // ready.
  for (int shard = working; shard < replica.local_shards() && shards.begin == 0 && !accumulate; ++shard)
    replica.zero_gradients(shard);
  run_stage(
      replica, shards, &Plan::backward, backward_gathers,
      [&](int shard, const engine::PlanStep& s) {
        if (last && shard + 1 == working && s.ready_from >= 0) gradient_sync.entries_ready(s.ready_from);
      },
      [&](std::size_t segment) {
        for (std::size_t i = 0; last && segment < ready_in_segment.size() && i < ready_in_segment[segment].size(); ++i)
          gradient_sync.entries_ready(ready_in_segment[segment][i]);
      });
  if (last && shards.end == replica.local_shards())
    gradient_sync.entries_ready(0);  // remaining buckets; without rows, all
}

void DataParallel::State::upload_labels(Replica& replica, const Batch& batch, Range rows) {
  if (options.loss != LossAt::gathered || replica.rank() != 0 || rows.size() == 0) return;
  loss_labels = batch.labels.data<std::int32_t>() + rows.begin;
  if (replica.context().host_accessible()) return;
  reserve_gather(rows.size());
  replica.compute().copy(gathered_labels->data(), loss_labels,
                         static_cast<std::size_t>(rows.size()) * sizeof(std::int32_t));
  loss_labels = gathered_labels->data();
}

// As in nn.DataParallel: the master computes the loss of the whole micro-batch, and scatters the gradient of the logits
// to the replicas.
void DataParallel::State::gathered_loss(Replica& replica, std::int64_t rows) {
  const Plan* plan = replica.select(0);
  replica.enter(Phase::loss);
  failpoints.hit(Phase::loss, replica.rank(), step);
  if (rows == 0) return;
  gather_logits(replica, rows);
  const bool master = replica.rank() == 0;
  if (master) {
    void* const args[] = {size() == 1 ? replica.at(plan->logits()) : gathered_logits->data(),
                          const_cast<void*>(loss_labels),
                          replica.inputs(),
                          size() == 1 ? replica.at(plan->logits_grad()) : gathered_grad->data(),
                          replica.results(),
                          replica.scaler()};
    kernels::Op& op = gathered_loss_op(rows);
    op.run(replica.compute(), args, loss_workspace->data());
  }
  if (size() == 1) return;
  const auto rank = static_cast<std::size_t>(replica.rank());
  io[rank]->scatter(master ? gathered_grad->data() : nullptr, plan ? replica.at(plan->logits_grad()) : nullptr,
                    part_bytes[rank], 0, replica.compute());
}

void DataParallel::State::gather_logits(Replica& replica, std::int64_t rows) {
  const Plan* plan = replica.select(0);
  if (size() == 1) return;
  const auto rank = static_cast<std::size_t>(replica.rank());
  const std::size_t row = static_cast<std::size_t>(model.output().numel()) * size_of(table->type());
  for (int r = 0; r < size(); ++r)
    part_bytes[rank][static_cast<std::size_t>(r)] =
        static_cast<std::size_t>(engine::shard_of(rows, r, size(), options.split).size()) * row;
  if (rank == 0) reserve_gather(rows);
  io[rank]->gather(plan ? replica.at(plan->logits()) : nullptr, rank == 0 ? gathered_logits->data() : nullptr,
                   part_bytes[rank], 0, replica.compute());
}

// With OnNonfinite::abort: Error(nonfinite) if a loss or gradient is not finite. Checks only if the host can read the
// results and the device is idle; take_stats() always checks.
void DataParallel::State::check_finite(Replica& replica) {
  if (options.on_nonfinite != OnNonfinite::abort || !replica.context().host_accessible() || !replica.context().idle())
    return;
  std::int64_t samples = 0;
  for (int shard = 0; shard < replica.local_shards(); ++shard) samples += replica.results()[shard].nonfinite;
  if (samples == 0 && replica.results()->grad_nonfinite == 0) return;
  replica.enter(samples ? Phase::loss : Phase::update);
  throw Error(ErrorCode::nonfinite, samples ? fmt::format("the loss of {} samples is not finite", samples)
                                            : std::string("a gradient is not finite"));
}

void DataParallel::State::plant_nan(Replica& replica, engine::Ref place) {
  const double nan64 = std::numeric_limits<double>::quiet_NaN();
  const float nan32 = std::numeric_limits<float>::quiet_NaN();
  const bool wide = table->type() == DType::f64;
  replica.compute().upload(replica.at(place), wide ? static_cast<const void*>(&nan64) : &nan32, size_of(table->type()));
}

void DataParallel::evaluate(const Batch& batch) {
  State& s = *state_;
  check_batch(batch, s.model);
  s.forward_rows = 0;
  s.reserve(State::evaluated_batch(batch.size(), batch.resident));
  s.graphs->evaluated(batch.global_size(), batch.resident.set != nullptr);
  s.broadcast_buffers();
  s.on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.wait_for_weights();
    replica.upload_inputs(s.step_inputs(batch.global_size()));
    s.scatter(replica, batch, {0, batch.size()}, /*training=*/false, /*accumulate=*/false, /*gathers=*/false);
    replica.make_images();
    const int together = replica.shards_together();
    for (int first = 0; first < replica.local_shards(); first += together) {
      const State::ShardRange shards{first, first + together};
      s.forward(replica, shards, /*training=*/false);
      s.local_loss(replica, shards);
    }
    replica.context().flush();
    replica.throttle();
  });
}

void DataParallel::State::broadcast_buffers() {
  if (!std::exchange(buffers_behind, false) || norms.count() == 0 || size() == 1) return;
  on_replicas([&](Replica& replica, GradientSync&) {
    io_of(replica).broadcast(replica.buffers(), norms.buffer_size(), table->type(), 0, replica.compute());
    replica.context().flush();
  });
}

}  // namespace dp
