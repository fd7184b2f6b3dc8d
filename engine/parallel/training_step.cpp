// The step, in the order in which it happens:
//
//   train             wait for the weights of the last step, upload the numbers that change
//     scatter         give each shard its rows of the micro-batch
//     train_micro_batch; a GPU may capture it in the second step of its kind, and then launches it as a graph
//       forward       all shards; batch normalisation may exchange statistics between segments
//       loss          where the logits are, or on the master
//       backward      as soon as a bucket of gradients is complete, it is reduced, its weights are updated and
//                     distributed (gradient_sync)
//       finish_update the update, if it needs the norm of the whole gradient; then the moving average
//
// With a pipeline, train_pipelined() runs forward, loss and backward of single items in the order of the schedule. A
// graph can capture it.
#include "engine/parallel/training_step.h"

#include <fmt/format.h>

#include <limits>

namespace dp::engine {

using kernels::Range;

TrainingStep::TrainingStep(ReplicaSet& team, StepGraphs& graphs, GatheredLoss& gathered_loss,
                           const MovingAverages& averages)
    : team_(team), setup_(team.setup), graphs_(graphs), gathered_loss_(gathered_loss), averages_(averages) {
  const int items = setup_.options.grad_accum_steps * setup_.local_shards();
  if (!setup_.pipelined()) return;
  for (int stage = 0; stage < setup_.stage_count(); ++stage)
    actions_.push_back(actions_of(setup_.options.pipeline.schedule, stage, setup_.stage_count(), items));
}

void TrainingStep::train(Replica& replica, GradientSync& gradient_sync, const Batch& batch,
                         const kernels::StepInputs& inputs, const UpdateKind& update) {
  const bool on_master = setup_.options.loss == LossAt::gathered;
  replica.begin_timing(team_.step);
  gradient_sync.wait_for_weights();
  replica.upload_inputs(inputs);
  gradient_sync.optimizer().use(update);
  gradient_sync.begin(team_.step, !setup_.update_needs_whole_gradient());
  if (setup_.pipelined()) {
    for (int micro = 0; micro < setup_.options.grad_accum_steps; ++micro) {
      replica.progress().reach_micro_batch(micro * replica.local_shards());
      scatter(replica, batch, setup_.micro_batch(batch.size(), micro), micro, /*training=*/true, /*gathers=*/false);
    }
    graphs_.run(team_.local(replica), 0, [&] { train_pipelined(replica, gradient_sync); });
  } else {
    for (int micro = 0; micro < setup_.options.grad_accum_steps; ++micro) {
      const Range rows = setup_.micro_batch(batch.size(), micro);
      replica.progress().reach_micro_batch(micro);
      scatter(replica, batch, rows, micro, /*training=*/true, on_master);
      if (on_master) gathered_loss_.upload_labels(replica, batch, rows);
      graphs_.run(team_.local(replica), static_cast<std::size_t>(micro),
                  [&] { train_micro_batch(replica, gradient_sync, rows.size(), micro); });
    }
  }
  replica.context().flush();
  replica.throttle();
  replica.end_timing();
  check_finite(replica);
}

// Runs forward, loss and backward of a micro-batch, and after the last one the update. A CUDA graph may capture it.
// Therefore it reads no host memory on GPUs.
void TrainingStep::train_micro_batch(Replica& replica, GradientSync& gradient_sync, std::int64_t rows, int micro) {
  const bool accumulate = micro > 0, last = micro + 1 == setup_.options.grad_accum_steps;
  replica.make_images();
  for (int first = 0; first < replica.local_shards(); first += replica.lanes()) {
    const Items shards{first, first + replica.lanes()};
    forward(replica, shards, /*training=*/true);
    if (setup_.options.loss == LossAt::gathered)
      gathered_loss(replica, rows);
    else
      loss(replica, shards);
    check_finite(replica);  // before the reduction spreads a NaN to all replicas
    backward(replica, gradient_sync, shards, accumulate, last);
  }
  if (last) finish_update(replica, gradient_sync);
}

// Runs all micro-batches of the step on one stage of the replica. A CUDA graph may capture it, too.
void TrainingStep::train_pipelined(Replica& replica, GradientSync& gradient_sync) {
  const int micro_batches = setup_.options.grad_accum_steps;
  replica.make_images();
  for (const Action& action : actions_[static_cast<std::size_t>(replica.stage())]) {
    const Items item{action.micro_batch, action.micro_batch + 1};  // an Action counts items
    const int micro = item.begin / replica.local_shards();
    replica.progress().reach_micro_batch(item.begin);
    if (action.work == Work::forward) {
      forward(replica, item, /*training=*/true);
      if (!setup_.recomputes(replica.stage())) loss(replica, item);
      check_finite(replica);
    } else {
      if (setup_.recomputes(replica.stage())) forward_again(replica, item);
      backward(replica, gradient_sync, item, /*accumulate=*/micro > 0, /*last=*/micro + 1 == micro_batches,
               action.work);
    }
  }
  finish_update(replica, gradient_sync);
}

// Sets the inputs of this replica's shards of a micro-batch. A shard without rows has no plan and computes nothing.
void TrainingStep::scatter(Replica& replica, const Batch& batch, Range rows, int micro, bool training, bool gathers) {
  replica.enter(Phase::scatter);
  run_failpoints(replica, Phase::scatter);
  const int first = setup_.pipelined() ? micro * replica.local_shards() : 0;
  for (int shard = 0; shard < replica.local_shards(); ++shard) {
    const Range own = setup_.rows_of(rows.size(), replica.rank(), shard);
    const Plan* plan =
        own.size() > 0
            ? &replica.plan(setup_.plan_options(replica.stage(), own.size(), training, training && micro > 0, gathers))
            : nullptr;
    replica.bind(first + shard, plan, input_of(batch, {rows.begin + own.begin, rows.begin + own.end}));
  }
}

// With a pipeline, `items` is one item.
void TrainingStep::forward(Replica& replica, Items items, bool training) {
  replica.enter(Phase::forward);
  const bool nan = run_failpoints(replica, Phase::forward), last_stage = setup_.is_last(replica.stage());
  const std::size_t number = team_.local(replica);
  if (!training)
    for (int item = items.begin; item < items.end; ++item)
      if (const Plan* const own = replica.select(item)) replica.fold(*own, team_.weights_version);
  const Plan* const plan = replica.select(items.begin);
  if (plan != nullptr && replica.stage() > 0)
    receive(replica, *team_.forward_links[number - 1], plan->input(), items.begin);
  if (training && plan != nullptr && saves_input(replica))
    replica.compute().copy(replica.saved_input(), replica.at(plan->input().where), plan->input().desc.layout.bytes);
  static const std::vector<Gather> none;
  run_pass(
      replica, items, &Plan::forward, training ? setup_.stage_of(replica).forward_gathers : none,
      [](int, const PlanStep&) {}, [](std::size_t) {});
  replica.select(items.begin);
  if (nan && plan != nullptr) plant_nan(replica, last_stage ? plan->logits() : plan->output().where);
  if (plan != nullptr && !last_stage) send(replica, *team_.forward_links[number], plan->output(), items.begin);
  if (training && items.end % replica.local_shards() == 0)  // after the last shard of a micro-batch
    update_running_statistics(replica, items.end - replica.local_shards());
}

// Computes the activations of an item a second time, before its backward pass. The running statistics have been
// updated already.
void TrainingStep::forward_again(Replica& replica, Items item) {
  replica.enter(Phase::forward);
  const bool nan = run_failpoints(replica, Phase::forward);
  const Plan* const plan = replica.select(item.begin);
  if (plan != nullptr && saves_input(replica))
    replica.compute().copy(replica.at(plan->input().where), replica.saved_input(), plan->input().desc.layout.bytes);
  run_pass(
      replica, item, &Plan::forward, setup_.stage_of(replica).forward_gathers, [](int, const PlanStep&) {},
      [](std::size_t) {});
  if (nan && plan != nullptr && setup_.is_last(replica.stage())) plant_nan(replica, plan->logits());
  loss(replica, item);
}

// Updates the master's running statistics, from its first shard or from all shards (options.batch_norm). `first_item`:
// the first shard of the micro-batch.
void TrainingStep::update_running_statistics(Replica& replica, int first_item) {
  const Stage& stage = setup_.stage_of(replica);
  if (stage.norms.count() == 0) return;
  if (setup_.options.batch_norm == BatchNormMode::pooled) {
    for (int shard = 0; shard < replica.local_shards(); ++shard)
      if (replica.select(first_item + shard) == nullptr)
        for (const Gather& moments : stage.pooled_gathers) replica.zero_part(moments);
    for (const Gather& moments : stage.pooled_gathers)
      if (setup_.size() > 1)
        team_.io_of(replica).all_gather_parts(replica.at({Space::moments, moments.offset}),
                                              moments.part_bytes * static_cast<std::size_t>(replica.local_shards()),
                                              replica.compute());
  }
  const Plan* plan = replica.select(first_item);
  if (replica.rank() == 0 && plan != nullptr) replica.run(plan->running());
}

// Only the last stage computes the loss.
void TrainingStep::loss(Replica& replica, Items items) {
  if (!setup_.is_last(replica.stage())) return;
  replica.enter(Phase::loss);
  for (int item = items.begin; item < items.end; ++item)
    if (const Plan* plan = replica.select(item)) replica.run(plan->loss());
}

void TrainingStep::gathered_loss(Replica& replica, std::int64_t rows) {
  replica.enter(Phase::loss);
  run_failpoints(replica, Phase::loss);
  gathered_loss_.run(replica, rows);
}

// Reports each bucket as ready as soon as the gradients of all shards are complete. `last`: of the last micro-batch.
void TrainingStep::backward(Replica& replica, GradientSync& gradient_sync, Items items, bool accumulate, bool last,
                            Work work) {
  replica.enter(Phase::backward);
  const bool nan = run_failpoints(replica, Phase::backward), last_stage = setup_.is_last(replica.stage());
  const std::size_t number = team_.local(replica);
  const int first = items.begin / replica.local_shards() * replica.local_shards();
  int working = 0;
  for (int shard = 0; shard < replica.local_shards(); ++shard) working += replica.plan_of(first + shard) != nullptr;
  // Shards without rows have the highest numbers. Their gradients are set to zero first: the last shard with rows
  // reports the buckets of all shards as ready.
  if (items.begin == first && !accumulate)
    for (int shard = working; shard < replica.local_shards(); ++shard) replica.zero_gradients(shard);
  const Plan* const plan = replica.select(items.begin);
  const Stage& stage = setup_.stage_of(replica);
  const auto report = [&](int item, const PlanStep& step) {
    if (last && item - first + 1 == working && step.ready_from >= 0) gradient_sync.entries_ready(step.ready_from);
  };
  if (work == Work::weight_gradient) {
    static const std::vector<Gather> none;
    run_pass(replica, items, &Plan::weights, none, report, [](std::size_t) {});
  } else {
    if (plan != nullptr && !last_stage)
      receive(replica, *team_.backward_links[number], plan->output_grad(), items.begin);
    if (nan && plan != nullptr) plant_nan(replica, last_stage ? plan->logits_grad() : plan->output_grad().where);
    run_pass(replica, items, &Plan::backward, stage.backward_gathers, report, [&](std::size_t segment) {
      if (!last || segment >= stage.ready_in_segment.size()) return;
      for (const int entry : stage.ready_in_segment[segment]) gradient_sync.entries_ready(entry);
    });
    replica.select(items.begin);
    if (plan != nullptr && replica.stage() > 0)
      send(replica, *team_.backward_links[number - 1], plan->input_grad(), items.begin);
  }
  if (work != Work::input_gradient && last && items.end == first + replica.local_shards())
    gradient_sync.entries_ready(0);  // all buckets that are not reported yet
}

// Updates the buckets that had to wait for the whole gradient, and the moving average. Call it after the last backward
// pass of the step.
void TrainingStep::finish_update(Replica& replica, GradientSync& gradient_sync) {
  replica.enter(Phase::update);
  if (setup_.update_needs_whole_gradient()) gradient_sync.update(/*norm=*/true);
  update_average(replica, gradient_sync);
}

void TrainingStep::update_average(Replica& replica, GradientSync& gradient_sync) {
  if (averages_.empty() || replica.rank() != 0) return;
  gradient_sync.wait_for_weights();
  averages_[static_cast<std::size_t>(replica.stage())]->update();
}

// send() and receive() transfer a tensor of the selected item to or from a neighbouring stage.
void TrainingStep::send(Replica& replica, kernels::Link& link, const Border& border, int item) {
  replica.compute().detail(micro_batch_detail(item));
  link.send(replica.at(border.where), border.desc.layout.bytes, replica.compute());
  replica.compute().detail(0);
}

void TrainingStep::receive(Replica& replica, kernels::Link& link, const Border& border, int item) {
  replica.compute().detail(micro_batch_detail(item));
  link.receive(replica.at(border.where), border.desc.layout.bytes, replica.compute());
  replica.compute().detail(0);
}

// Runs a pass of the plans of some items. The pass is split into segments at each statistic that needs all shards. An
// all-gather between replicas ends each segment but the last. after(item, step) runs after each step of a plan.
// On a replica without rows, idle(segment) runs before each all-gather and at the end.
template <typename After, typename Idle>
void TrainingStep::run_pass(Replica& replica, Items items, const std::vector<PlanStep>& (Plan::*pass)() const,
                            const std::vector<Gather>& gathers, After&& after, Idle&& idle) {
  for (std::size_t segment = 0; segment <= gathers.size(); ++segment) {
    for (int item = items.begin; item < items.end; ++item) {
      if (const Plan* plan = replica.select(item))
        replica.run_segment((plan->*pass)(), segment == 0, [&](const PlanStep& step) { after(item, step); });
      else if (segment < gathers.size())
        replica.zero_part(gathers[segment]);
    }
    if (replica.plan_of(items.begin) == nullptr) idle(segment);
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
  const int micro_batches = setup_.pipelined() ? setup_.options.grad_accum_steps : 1;
  const auto rows_of = [&](int micro) { return shard_of(batch.size(), micro, micro_batches, Split::balanced); };
  for (int micro = 0; micro < micro_batches; ++micro)
    scatter(replica, batch, rows_of(micro), micro, /*training=*/false, /*gathers=*/false);
  replica.make_images();
  const int together = setup_.pipelined() ? 1 : replica.lanes();
  for (int micro = 0; micro < micro_batches; ++micro)
    for (int shard = 0; shard < replica.local_shards(); shard += together) {
      const int first = micro * replica.local_shards() + shard;
      replica.progress().reach_micro_batch(first);
      evaluate(replica, {first, first + together}, batch, rows_of(micro), store);
    }
  replica.context().flush();
  replica.throttle();
}

// `rows`: of the micro-batch.
void TrainingStep::evaluate(Replica& replica, Items items, const Batch& batch, Range rows, LogitsStore* store) {
  forward(replica, items, /*training=*/false);
  loss(replica, items);
  if (!setup_.is_last(replica.stage()) || store == nullptr) return;
  for (int item = items.begin; item < items.end; ++item)
    if (const Plan* plan = replica.select(item)) {
      const Range own = setup_.rows_of(rows.size(), replica.rank(), item % replica.local_shards());
      store->append(*plan, input_of(batch, {rows.begin + own.begin, rows.begin + own.end}));
    }
}

void TrainingStep::forward_alone(Replica& replica, GradientSync& gradient_sync, const Batch& batch, std::int64_t rows,
                                 bool training, const kernels::StepInputs& inputs) {
  gradient_sync.wait_for_weights();
  replica.upload_inputs(inputs);
  scatter(replica, batch, {0, rows}, /*micro=*/0, training, /*gathers=*/true);
  forward(replica, Items{0, 1}, training);
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
  backward(replica, gradient_sync, Items{0, 1}, /*accumulate=*/false, /*last=*/true);
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
  gradient_sync.update(setup_.update_needs_whole_gradient());
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
  const bool wide = setup_.type() == DType::f64;
  replica.compute().upload(replica.at(place), wide ? static_cast<const void*>(&nan64) : &nan32, setup_.element_bytes());
}

}  // namespace dp::engine
