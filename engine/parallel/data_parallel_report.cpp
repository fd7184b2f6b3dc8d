// Reports of a DataParallel: statistics, times, memory, plans.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "dp/error.h"
#include "engine/base/loss_kind.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/parallel/step_timeline.h"
#include "engine/step/memory/memory_room.h"
#include "engine/step/parallel_option_table.h"
#include "engine/step/pipeline/schedule.h"

namespace dp {

Stats DataParallel::take_stats() {
  State& s = *state_;
  std::vector<std::vector<kernels::StepResults>> results(s.team.workers.size());  // [replica][shard of the replica]
  s.team.on_workers([&](engine::Worker& worker) {
    worker.gradient_sync->wait_until_idle();
    auto& result = results[worker.number];
    result = worker.arenas.take_results();
    std::int64_t bad_samples = 0;
    for (const kernels::StepResults& shard : result) bad_samples += shard.nonfinite;
    if (s.setup.options.on_nonfinite == OnNonfinite::abort &&
        (bad_samples != 0 || result.front().grad_nonfinite != 0)) {
      worker.clock.enter(bad_samples ? engine::Phase::loss : engine::Phase::update);
      throw Error(ErrorCode::nonfinite,
                  "a loss or gradient is not finite, in this step or in an earlier one since the last report");
    }
  });
  Stats stats;
  for (const auto& replica : results)
    for (const kernels::StepResults& shard : replica) {
      stats.loss_sum += shard.loss_sum;
      stats.samples += shard.samples;
      stats.top1 += shard.top1;
      stats.top5 += shard.top5;
    }
  if (s.setup.options.process_group) {
    const std::vector<Stats> parts = s.team.values_of_all_ranks(std::exchange(stats, {}));
    for (const Stats& part : parts) {
      stats.loss_sum += part.loss_sum;
      stats.samples += part.samples;
      stats.top1 += part.top1;
      stats.top5 += part.top5;
    }
  }
  const Stats own = std::exchange(s.own_stats, {});
  stats.loss_sum += own.loss_sum, stats.samples += own.samples, stats.top1 += own.top1, stats.top5 += own.top5;
  const auto& loss = s.setup.options.output_loss;
  stats.has_labels = own.has_labels && (!loss || is_of_one_class(*loss));
  stats.skipped = results.front().front().skipped_steps;
  s.optimizer.reported_skipped(stats.skipped);
  stats.grad_norm = results.front().front().grad_norm;
  if (const auto scale = loss_scale()) stats.loss_scale = scale->scale;
  return stats;
}

bool DataParallel::store_logits(std::int64_t batches, std::int64_t rows) {
  State& s = *state_;
  if (s.setup.options.own_loss) {
    s.own_outputs = {.most = batches * rows};
    return true;
  }
  // The most rows that a replica gets of one batch. With weights, a batch that is slightly smaller than the largest one
  // can give a replica one row more.
  const auto most_of = [&](int rank) {
    if (s.setup.options.process_group) return rows;
    if (!s.setup.options.split_weights.empty()) return s.setup.rows_of(rows, rank, 0).size() + 1;
    // Each item rounds its share up.
    const std::int64_t micro = engine::evaluation_batch(rows, {}, s.setup.options).micro_rows(0);
    const std::int64_t items = s.setup.local_shards() * (s.setup.pipelined() ? s.setup.options.grad_accum_steps : 1);
    return (micro + s.setup.shards() - 1) / s.setup.shards() * items;
  };
  const std::size_t row_bytes = static_cast<std::size_t>(s.setup.model.output().numel()) * s.setup.element_bytes();
  const auto drop = [&] {
    for (const auto& worker : s.team.workers) worker->logits_store.reset();
  };
  drop();
  s.team.on_workers([&](engine::Worker& worker) {
    const std::int64_t most = s.setup.is_last(worker.stage()) ? batches * most_of(worker.rank()) : 0;
    try {
      worker.logits_store = std::make_unique<engine::LogitsStore>(worker, most, row_bytes, s.setup.target_bytes(false));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::device) throw;
    } catch (const std::bad_alloc&) {
    }
  });
  const bool all =
      std::ranges::all_of(s.team.workers, [](const auto& worker) { return worker->logits_store != nullptr; });
  if (!all) drop();
  return all;
}

EvaluatedLogits DataParallel::take_logits() {
  State& s = *state_;
  EvaluatedLogits taken;
  if (s.own_outputs) {
    State::OwnOutputs own = std::exchange(*s.own_outputs, {.most = s.own_outputs->most});
    if (own.samples.empty()) return taken;
    const Shape shape = s.setup.model.output().prepended(static_cast<std::int64_t>(own.samples.size()));
    taken.logits = Tensor(shape, s.setup.type());
    std::memcpy(taken.logits.raw(), own.logits.data(), own.logits.size());
    if (!own.targets.empty()) {
      taken.targets = Tensor(shape);
      std::memcpy(taken.targets.raw(), own.targets.data(), own.targets.size());
    }
    taken.samples = std::move(own.samples), taken.labels = std::move(own.labels);
    return taken;
  }
  std::vector<std::byte> targets;
  std::vector<std::int64_t> begins;
  for (const auto& worker : s.team.workers) {
    const engine::LogitsStore* const store = worker->logits_store.get();
    if (store == nullptr) return taken;
    begins.push_back(static_cast<std::int64_t>(taken.samples.size()));
    taken.samples.insert(taken.samples.end(), store->samples().begin(), store->samples().end());
    targets.insert(targets.end(), store->targets().begin(), store->targets().end());
  }
  if (taken.samples.empty()) return taken;
  const std::int64_t classes = s.setup.model.output().numel();
  const Shape shape{static_cast<std::int64_t>(taken.samples.size()), classes};
  taken.logits = Tensor(shape, s.setup.type());
  if (s.setup.options.output_loss) {
    taken.targets = Tensor(shape);
    std::memcpy(taken.targets.raw(), targets.data(), targets.size());
  } else {
    taken.labels.resize(taken.samples.size());
    std::memcpy(taken.labels.data(), targets.data(), targets.size());
  }
  s.team.on_workers([&](engine::Worker& worker) {
    auto* const to = static_cast<std::byte*>(taken.logits.raw()) +
                     static_cast<std::size_t>(begins[worker.number] * classes) * s.setup.element_bytes();
    worker.logits_store->download(to);
    worker.logits_store->clear();
  });
  return taken;
}

std::vector<PhaseTimes> DataParallel::take_phase_times() {
  std::vector<PhaseTimes> times;
  for (const auto& worker : state_->team.workers) times.push_back(worker->clock.take_times());
  return state_->setup.options.process_group ? state_->team.values_of_all_ranks(times.front()) : times;
}

const Model& DataParallel::model() const { return state_->setup.model; }
const DataParallelOptions& DataParallel::options() const { return state_->chosen_options; }

int DataParallel::size() const { return state_->setup.replica_count() * state_->setup.stage_count(); }

std::vector<std::string> DataParallel::device_names() const { return state_->device_names; }
std::vector<std::string> DataParallel::device_identities() const { return state_->device_identities; }

std::string DataParallel::communicator() const {
  if (state_->first().compute_communicator) return state_->first().compute_communicator->name();
  return communicator_name(state_->setup.options.comm);
}

std::string DataParallel::threads_notice() const { return state_->threads_notice; }

Choice DataParallel::communicator_choice() const {
  return {communicator_name(state_->setup.options.comm), state_->communicator_reason};
}

Choice DataParallel::graphs_choice() const { return state_->team.graphs->choice(); }

MemoryUse DataParallel::memory_use(int device) const {
  const auto at = static_cast<std::size_t>(device);
  return state_->setup.options.process_group ? state_->rank_memory.at(at)
                                             : state_->team.workers.at(at)->device.memory_use();
}

std::string DataParallel::describe_pipeline() const {
  const engine::ModelSetup& setup = state_->setup;
  if (!setup.pipelined()) return {};
  const PipelineOptions& pipeline = setup.options.pipeline;
  std::string cuts;
  for (const engine::Cut& cut : setup.cuts) cuts += " " + cut.name;
  const std::vector<engine::StageSeconds> equal(setup.stages.size(), {1, 1, 1});
  const double bubble = engine::simulate(pipeline.schedule, equal, pipeline.micro_batches, /*hand_over=*/0).bubble;
  std::size_t fullest = 0;
  for (const auto& worker : state_->team.workers) fullest = std::max(fullest, worker->device.memory_use().total());
  return fmt::format(
      "pipeline: {} stages at{}, {:.1f} % balanced, bubble {:.0f} % ({}, {} micro-batches), {} on the "
      "fullest device",
      setup.stage_count(), cuts, 100 * setup.balance, 100 * bubble,
      parallel_option_table().text("schedule", setup.options), pipeline.micro_batches, engine::in_units(fullest));
}

std::string DataParallel::describe_steps() const { return state_->team.graphs->describe(); }

std::string DataParallel::describe_plan(std::int64_t global_batch) const {
  State& s = *state_;
  if (s.setup.pipelined()) {
    s.reserve(engine::training_batch(global_batch, {}, s.setup.options));
    s.reserve(engine::evaluation_batch(global_batch, {}, s.setup.options));
  }
  std::string text = fmt::format("model {}: {} parameters, {:.1f} MiB a copy\n{}\n", s.setup.model.name(),
                                 s.setup.model.parameter_count(),
                                 static_cast<double>(s.setup.parameter_bytes()) / (1 << 20), describe_steps());
  if (s.setup.pipelined()) text += describe_pipeline() + "\n";
  for (const engine::Stage& stage : s.setup.stages) {
    if (s.setup.pipelined()) text += fmt::format("stage {}\n", &stage - &s.setup.stages.front());
    for (const auto& entry : stage.table->entries())
      text += fmt::format("  {:<24} {:<20} at {:>10}  {}\n", entry.name, to_string(entry.shape), entry.offset,
                          entry.layout.name);
  }
  if (const auto low = activations_of(s.setup.options))
    text += fmt::format("mixed precision: activations and the weights that layers read in {}, {:.1f} MiB a copy{}\n",
                        to_string(*low),
                        static_cast<double>(s.setup.parameter_bytes() / s.setup.element_bytes() * 2) / (1 << 20),
                        s.setup.scales_loss() ? ", the loss scaled" : "");
  if (s.setup.stages.front().table->vectors() != 0)
    text += s.setup.options.ema_decay
                ? "each step gathers all weights in float32, for the moving average\n"
                : "each step gathers weights as layers read them, biases and normalisation in float32\n";
  if (s.setup.options.reduce_dtype == DType::bf16)
    text += s.setup.shards() > 1 ? "gradients are rounded to bfloat16 for their sum\n"
                                 : "one replica sums nothing: no gradient is rounded to bfloat16\n";
  text += "buckets, in the order in which they become ready\n";
  for (int stage = s.setup.stage_count(); stage-- > 0;)
    for (const auto& bucket : s.team.workers[s.team.worker_number(0, stage)]->gradient_sync->buckets())
      text += fmt::format(
          "  {:>10} to {:>10}  {:.2f} MiB  from {}\n", bucket.range.begin, bucket.range.end,
          static_cast<double>(bucket.range.size()) * static_cast<double>(s.setup.element_bytes()) / (1 << 20),
          s.setup.stage(stage).table->entry(bucket.first_entry).name);
  const std::int64_t whole = s.setup.options.process_group
                                 ? (global_batch + s.setup.replica_count() - 1) / s.setup.replica_count()
                                 : global_batch;
  const std::int64_t micro = engine::shard_of(whole, 0, s.setup.options.grad_accum_steps, Split::balanced).size();
  std::vector<std::string> plans(s.setup.stages.size());
  s.team.on_first_replica([&](engine::Worker& worker) {
    std::string& own = plans[static_cast<std::size_t>(worker.stage())];
    if (s.setup.pipelined()) own = fmt::format("stage {}\n", worker.stage());
    for (const bool training : {true, false}) {
      const std::int64_t rows =
          s.setup.rows_of(training || s.setup.pipelined() ? micro : whole, worker.rank(), 0).size();
      const bool gathers_logits = training && s.setup.options.loss == LossAt::gathered;
      own += worker.runner.describe(worker.runner.plan(
          s.setup.plan_options(worker.stage(), rows, training, /*accumulate=*/false, gathers_logits)));
    }
  });
  for (const std::string& stage : plans) text += stage;
  return text;
}

std::int64_t DataParallel::write_trace(const std::string& file) {
  return engine::write_trace(state_->team, state_->setup, state_->device_names, file);
}

std::vector<LayerTime> DataParallel::layer_times() { return engine::layer_times(state_->team, state_->setup); }

double DataParallel::step_floor(std::int64_t batch) const {
  return engine::step_floor(state_->team, state_->setup, batch);
}

}  // namespace dp
