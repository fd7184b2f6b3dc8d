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
#include "engine/step/worker.h"

#include <fmt/format.h>

#include <limits>

#include "engine/step/step_graphs.h"
#include "engine/step/team.h"

namespace dp::engine {

using kernels::Range;

Worker::Worker(Team& team, std::size_t own_number, std::unique_ptr<kernels::Context> context, int rank, int stage)
    : Replica(team.setup.stage(stage).model, std::move(context), *team.setup.stage(stage).table,
              team.setup.stage(stage).norms, team.setup.replica_options(rank, stage)),
      number(own_number),
      gathered_loss(*this, team.setup),
      team_(team),
      setup_(team.setup),
      stage_(setup_.stage(stage)) {
  if (setup_.pipelined())
    actions_ = actions_of(setup_.options.pipeline.schedule, stage, setup_.stage_count(),
                          setup_.options.grad_accum_steps * setup_.local_shards());
}

void Worker::train(const Batch& batch, const kernels::StepInputs& inputs, const UpdateKind& update) {
  const bool gathers_logits = setup_.options.loss == LossAt::gathered;
  clock.begin(team_.step);
  gradient_sync->wait_for_weights();
  arenas.upload_step_inputs(inputs);
  gradient_sync->optimizer().set_kind(update);
  gradient_sync->begin(team_.step, !update_waits());
  if (setup_.pipelined()) {
    for (int micro = 0; micro < setup_.options.grad_accum_steps; ++micro) {
      clock.progress().reach_item(micro * local_shards());
      scatter(batch, setup_.rows_of_micro_batch(batch.size(), micro), micro, /*training=*/true,
              /*gathers_logits=*/false);
    }
    team_.graphs->run(*this, 0, [&] { train_pipelined(); });
  } else {
    for (int micro = 0; micro < setup_.options.grad_accum_steps; ++micro) {
      const Range rows = setup_.rows_of_micro_batch(batch.size(), micro);
      clock.progress().reach_item(micro);  // all items of this micro-batch
      scatter(batch, rows, micro, /*training=*/true, gathers_logits);
      if (gathers_logits) gathered_loss.upload_labels(batch, rows);
      team_.graphs->run(*this, static_cast<std::size_t>(micro), [&] { train_micro_batch(rows.size(), micro); });
    }
  }
  context().flush();
  runner.throttle();
  clock.end();
  check_finite();
}

// Runs forward, loss and backward of a micro-batch, and after the last one the update. A CUDA graph may capture it.
// Therefore it reads no host memory on GPUs.
void Worker::train_micro_batch(std::int64_t rows, int micro) {
  const bool accumulate = micro > 0, last = micro + 1 == setup_.options.grad_accum_steps;
  runner.make_images();
  for (int first = 0; first < local_shards(); first += options.lanes) {
    const Items shards{first, first + options.lanes};
    forward(shards, /*training=*/true);
    if (setup_.options.loss == LossAt::gathered)
      loss_on_master(rows);
    else
      loss(shards);
    check_finite();  // before the reduction spreads a NaN to all replicas
    backward(shards, accumulate, last);
  }
  if (last) finish_update();
}

// Runs all micro-batches of the step on one stage of the pipeline. A CUDA graph may capture it, too.
void Worker::train_pipelined() {
  const int micro_batches = setup_.options.grad_accum_steps;
  runner.make_images();
  for (const Action& action : actions_) {
    const Items item{action.item, action.item + 1};
    const int micro = item.begin / local_shards();
    clock.progress().reach_item(item.begin);
    if (action.work == Work::forward) {
      forward(item, /*training=*/true);
      if (!setup_.recomputes(stage())) loss(item);
      check_finite();
    } else {
      if (setup_.recomputes(stage())) recompute_forward(item);
      backward(item, /*accumulate=*/micro > 0, /*last=*/micro + 1 == micro_batches, action.work);
    }
  }
  finish_update();
}

// Sets the inputs of this replica's shards of a micro-batch. A shard without rows has no plan and computes nothing.
void Worker::scatter(const Batch& batch, Range rows, int micro, bool training, bool gathers_logits) {
  clock.enter(Phase::scatter);
  run_failpoints(Phase::scatter);
  const int first = setup_.pipelined() ? micro * local_shards() : 0;
  for (int shard = 0; shard < local_shards(); ++shard) {
    const Range own = setup_.rows_of(rows.size(), rank(), shard);
    const Plan* plan =
        own.size() > 0
            ? &runner.plan(setup_.plan_options(stage(), own.size(), training, training && micro > 0, gathers_logits))
            : nullptr;
    runner.bind(first + shard, plan, input_of(batch, {rows.begin + own.begin, rows.begin + own.end}));
  }
}

// With a pipeline, `items` is one item.
void Worker::forward(Items items, bool training) {
  clock.enter(Phase::forward);
  const bool nan = run_failpoints(Phase::forward), last_stage = setup_.is_last(stage());
  if (!training)
    for (int item = items.begin; item < items.end; ++item)
      if (runner.plan_of(item) != nullptr) runner.fold(item, team_.weights_version);
  const Plan* const plan = runner.plan_of(items.begin);
  if (plan != nullptr && stage() > 0) receive(*team_.forward_links[number - 1], plan->input(), items.begin);
  if (training && plan != nullptr && saves_input())
    compute().copy(runner.saved_input(items.begin), runner.address(items.begin, plan->input().where),
                   plan->input().desc.layout.bytes);
  static const std::vector<AllGather> none;
  run_pass(
      items, &Plan::forward, training ? stage_.forward_all_gathers : none, [](int, const PlanStep&) {},
      [](std::size_t) {});
  if (nan && plan != nullptr) plant_nan(items.begin, last_stage ? plan->logits() : plan->output().where);
  if (plan != nullptr && !last_stage) send(*team_.forward_links[number], plan->output(), items.begin);
  if (training && items.end % local_shards() == 0)  // after the last shard of a micro-batch
    update_running_statistics(items.end - local_shards());
}

// Computes the activations of an item a second time, before its backward pass, and the loss, which the first forward
// left out. The running statistics have been updated already.
void Worker::recompute_forward(Items item) {
  clock.enter(Phase::forward);
  const bool nan = run_failpoints(Phase::forward);
  const Plan* const plan = runner.plan_of(item.begin);
  if (plan != nullptr && saves_input())
    compute().copy(runner.address(item.begin, plan->input().where), runner.saved_input(item.begin),
                   plan->input().desc.layout.bytes);
  run_pass(
      item, &Plan::forward, stage_.forward_all_gathers, [](int, const PlanStep&) {}, [](std::size_t) {});
  if (nan && plan != nullptr && setup_.is_last(stage())) plant_nan(item.begin, plan->logits());
  loss(item);
}

// Updates the master's running statistics, from its first shard or from all shards (options.batch_norm). `first_item`:
// the first shard of the micro-batch.
void Worker::update_running_statistics(int first_item) {
  if (stage_.norms.count() == 0) return;
  if (setup_.options.batch_norm == BatchNormMode::pooled) {
    for (int shard = 0; shard < local_shards(); ++shard)
      if (runner.plan_of(first_item + shard) == nullptr)
        for (const AllGather& moments : stage_.pooled_all_gathers) arenas.zero_statistic(moments, shard);
    for (const AllGather& moments : stage_.pooled_all_gathers)
      if (setup_.replica_count() > 1) all_gather_statistics(moments);
  }
  const Plan* plan = runner.plan_of(first_item);
  if (rank() == 0 && plan != nullptr) runner.run(first_item, plan->running_statistics());
}

// Only the last stage computes the loss.
void Worker::loss(Items items) {
  if (!setup_.is_last(stage())) return;
  clock.enter(Phase::loss);
  for (int item = items.begin; item < items.end; ++item)
    if (const Plan* plan = runner.plan_of(item)) runner.run(item, plan->loss());
}

void Worker::loss_on_master(std::int64_t rows) {
  clock.enter(Phase::loss);
  run_failpoints(Phase::loss);
  gathered_loss.run(rows);
}

// Reports each bucket as ready as soon as the gradients of all shards are complete. `accumulate`: an earlier
// micro-batch has written gradients. `last`: this is the last micro-batch.
void Worker::backward(Items items, bool accumulate, bool last, Work work) {
  clock.enter(Phase::backward);
  const bool nan = run_failpoints(Phase::backward), last_stage = setup_.is_last(stage());
  const int first = items.begin / local_shards() * local_shards();
  int working = 0;
  for (int shard = 0; shard < local_shards(); ++shard) working += runner.plan_of(first + shard) != nullptr;
  // Shards without rows have the highest numbers. Their gradients are set to zero first: the last shard with rows
  // reports the buckets of all shards as ready.
  if (items.begin == first && !accumulate)
    for (int shard = working; shard < local_shards(); ++shard) arenas.zero_gradients(shard);
  const Plan* const plan = runner.plan_of(items.begin);
  const auto report = [&](int item, const PlanStep& step) {
    if (last && item - first + 1 == working && step.ready_from >= 0) gradient_sync->entries_ready(step.ready_from);
  };
  if (work == Work::weight_gradient) {
    static const std::vector<AllGather> none;
    run_pass(items, &Plan::weight_gradients, none, report, [](std::size_t) {});
  } else {
    if (plan != nullptr && !last_stage) receive(*team_.backward_links[number], plan->output_grad(), items.begin);
    if (nan && plan != nullptr) plant_nan(items.begin, last_stage ? plan->logits_grad() : plan->output_grad().where);
    run_pass(items, &Plan::backward, stage_.backward_all_gathers, report, [&](std::size_t segment) {
      if (!last || segment >= stage_.ready_in_segment.size()) return;
      for (const int entry : stage_.ready_in_segment[segment]) gradient_sync->entries_ready(entry);
    });
    if (plan != nullptr && stage() > 0) send(*team_.backward_links[number - 1], plan->input_grad(), items.begin);
  }
  if (work != Work::input_gradient && last && items.end == first + local_shards())
    gradient_sync->entries_ready(0);  // all buckets that are not reported yet
}

// Whether no bucket is updated before all are reduced.
bool Worker::update_waits() const {
  return setup_.update_needs_whole_gradient() || gradient_sync->optimizer().tensors() != nullptr;
}

// Updates the buckets that had to wait for the whole gradient, and the moving average. Call it after the last backward
// pass of the step.
void Worker::finish_update() {
  clock.enter(Phase::update);
  if (update_waits()) gradient_sync->update(setup_.update_needs_whole_gradient());
  update_moving_average();
}

void Worker::update_moving_average() {
  if (moving_average == nullptr) return;
  gradient_sync->wait_for_weights();
  moving_average->update();
}

// send() and receive() transfer a tensor of the item to or from a neighbouring stage.
void Worker::send(kernels::Link& link, const Border& border, int item) {
  compute().detail(item_detail(item));
  clock.progress().reach_transfer("send", static_cast<std::int64_t>(border.desc.layout.bytes));
  link.send(runner.address(item, border.where), border.desc.layout.bytes, compute());
  compute().detail(0);
}

void Worker::receive(kernels::Link& link, const Border& border, int item) {
  compute().detail(item_detail(item));
  clock.progress().reach_transfer("receive", static_cast<std::int64_t>(border.desc.layout.bytes));
  link.receive(runner.address(item, border.where), border.desc.layout.bytes, compute());
  compute().detail(0);
}

// Runs a pass of the plans of some items. The pass is split into segments at each statistic that needs all shards. An
// all-gather between replicas ends each segment but the last. after(item, step) runs after each step of a plan.
// On a replica without rows, without_rows(segment) runs at the end of each segment, before the all-gather.
template <typename After, typename WithoutRows>
void Worker::run_pass(Items items, const std::vector<PlanStep>& (Plan::*pass)() const,
                      const std::vector<AllGather>& all_gathers, After&& after, WithoutRows&& without_rows) {
  for (std::size_t segment = 0; segment <= all_gathers.size(); ++segment) {
    for (int item = items.begin; item < items.end; ++item) {
      if (const Plan* plan = runner.plan_of(item))
        runner.run_segment(item, (plan->*pass)(), segment == 0, [&](const PlanStep& step) { after(item, step); });
      else if (segment < all_gathers.size())
        arenas.zero_statistic(all_gathers[segment], item % local_shards());
    }
    if (runner.plan_of(items.begin) == nullptr) without_rows(segment);
    if (segment == all_gathers.size() || setup_.replica_count() == 1) continue;
    all_gather_statistics(all_gathers[segment]);
  }
}

void Worker::all_gather_statistics(const AllGather& statistics) {
  const std::size_t own = statistics.shard_bytes * static_cast<std::size_t>(local_shards());
  clock.progress().reach_transfer("all-gather of statistics", static_cast<std::int64_t>(own) * setup_.replica_count());
  compute_communicator->all_gather_parts(arenas.moments() + statistics.offset, own, compute());
}

void Worker::evaluate(const Batch& batch, const kernels::StepInputs& inputs) {
  gradient_sync->wait_for_weights();
  arenas.upload_step_inputs(inputs);
  const int micro_batches = setup_.pipelined() ? setup_.options.grad_accum_steps : 1;
  const auto rows_of = [&](int micro) { return shard_of(batch.size(), micro, micro_batches, Split::balanced); };
  for (int micro = 0; micro < micro_batches; ++micro)
    scatter(batch, rows_of(micro), micro, /*training=*/false, /*gathers_logits=*/false);
  runner.make_images();
  const int together = setup_.pipelined() ? 1 : options.lanes;
  for (int micro = 0; micro < micro_batches; ++micro)
    for (int shard = 0; shard < local_shards(); shard += together) {
      const int first = micro * local_shards() + shard;
      clock.progress().reach_item(first);
      evaluate({first, first + together}, batch, rows_of(micro));
    }
  context().flush();
  runner.throttle();
}

// `rows`: where the micro-batch is in the batch.
void Worker::evaluate(Items items, const Batch& batch, Range rows) {
  forward(items, /*training=*/false);
  loss(items);
  if (!setup_.is_last(stage()) || logits_store == nullptr) return;
  for (int item = items.begin; item < items.end; ++item)
    if (const Plan* plan = runner.plan_of(item)) {
      const Range own = setup_.rows_of(rows.size(), rank(), item % local_shards());
      logits_store->append(item, *plan, input_of(batch, {rows.begin + own.begin, rows.begin + own.end}));
    }
}

void Worker::forward_alone(const Batch& batch, std::int64_t rows, bool training, const kernels::StepInputs& inputs) {
  gradient_sync->wait_for_weights();
  arenas.upload_step_inputs(inputs);
  scatter(batch, {0, rows}, /*micro=*/0, training, /*gathers_logits=*/true);
  forward(Items{0, 1}, training);
  gathered_loss.gather_logits(rows);
  context().flush();
  compute().synchronize();
}

void Worker::backward_alone(const Tensor& logits_grad, std::int64_t rows) {
  gradient_sync->begin(team_.step, /*per_bucket=*/false);
  const Range own = setup_.rows_of(rows, rank(), 0);
  if (const Plan* plan = runner.plan_of(0)) {
    const Tensor part = logits_grad.rows(own.begin, own.end);
    compute().copy(runner.address(0, plan->logits_grad()), part.raw(), part.bytes());
  }
  backward(Items{0, 1}, /*accumulate=*/false, /*last=*/true);
  context().flush();
  gradient_sync->wait_until_idle();
  compute().synchronize();
}

void Worker::update_alone(const kernels::StepInputs& inputs, const UpdateKind& update) {
  gradient_sync->wait_for_weights();
  arenas.upload_step_inputs(inputs);
  gradient_sync->optimizer().set_kind(update);
  gradient_sync->begin(team_.step, /*per_bucket=*/false);
  gradient_sync->update(setup_.update_needs_whole_gradient());
  update_moving_average();
  context().flush();
  check_finite();
}

const void* Worker::targets_of(const Batch& batch, std::int64_t row) const {
  const Tensor& targets = batch.targets.empty() ? batch.labels : batch.targets;
  if (targets.empty()) return nullptr;
  return static_cast<const std::byte*>(targets.raw()) + static_cast<std::size_t>(row) * setup_.target_bytes(batch);
}

ShardInput Worker::input_of(const Batch& batch, Range rows) const {
  ShardInput input;
  input.rows = rows.size();
  if (batch.resident.set)
    input.resident = &batch.resident;
  else
    input.images = batch.images.data<float>() + rows.begin * setup_.model.input().numel();
  input.labels = targets_of(batch, rows.begin);
  input.target_bytes = setup_.target_bytes(batch);
  input.samples = (batch.samples.empty() ? team_.row_numbers.data() : batch.samples.data<std::int64_t>()) + rows.begin;
  return input;
}

// Runs the failpoints of this phase, which may throw or wait. Returns whether one plants a NaN.
bool Worker::run_failpoints(Phase phase) {
  return setup_.failpoints.hit({phase, rank(), team_.step, stage(), clock.progress().item()});
}

// With OnNonfinite::abort: Error(nonfinite) if a loss or gradient is not finite. Checks only if the host can read the
// results and the device is idle; take_stats() always checks.
void Worker::check_finite() {
  if (setup_.options.on_nonfinite != OnNonfinite::abort || !context().host_accessible() || !context().idle()) return;
  std::int64_t samples = 0;
  for (int shard = 0; shard < local_shards(); ++shard) samples += arenas.step_results()[shard].nonfinite;
  if (samples == 0 && arenas.step_results()->grad_nonfinite == 0) return;
  clock.enter(samples ? Phase::loss : Phase::update);
  throw Error(ErrorCode::nonfinite, samples ? fmt::format("the loss of {} samples is not finite", samples)
                                            : std::string("a gradient is not finite"));
}

void Worker::plant_nan(int item, Ref place) {
  const double nan64 = std::numeric_limits<double>::quiet_NaN();
  const float nan32 = std::numeric_limits<float>::quiet_NaN();
  const bool wide = setup_.type() == DType::f64;
  compute().upload(runner.address(item, place), wide ? static_cast<const void*>(&nan64) : &nan32,
                   setup_.element_bytes());
}

}  // namespace dp::engine
