// Construction of a DataParallel: opens contexts, lays out and initialises parameters.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "dp/error.h"
#include "dp/random.h"
#include "engine/base/test_modes.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/state/loss_scale.h"
#include "engine/step/bucket_tuning.h"
#include "kernels/device/host/cores.h"

namespace dp {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::usage, why); }

constexpr const char* kNcclInGraphs =
    "NVIDIA warns that NCCL in CUDA graphs may deadlock where one process drives several GPUs, and recommends one GPU "
    "per process, as with --engine ddp (NCCL manual, \"Using NCCL with CUDA Graphs\")";

// One core per thread of `replica`. Empty without pin_threads, or if the host has too few cores for all its replicas.
std::vector<int> cores_of(int replica, const DataParallelOptions& o) {
  const int rank = o.process_group ? o.process_group->local_rank() : replica;
  const int replicas = o.process_group ? o.process_group->local_size() : static_cast<int>(o.devices.size());
  if (!o.pin_threads) return {};
  const auto all = kernels::cores_by_replica(kernels::host_topology(), replicas, o.threads_per_replica);
  return all.empty() ? std::vector<int>() : all[static_cast<std::size_t>(rank)];
}

float draw(const Init& init, Random& random) {
  switch (init.kind) {
    case InitKind::dirac:
    case InitKind::uniform: return random.uniform(-init.value, init.value);
    case InitKind::normal: return init.value * random.normal();
    case InitKind::constant: break;
  }
  return init.value;
}

// Filter i of an (O, I, kH, kW) tensor becomes 1 at the centre of channel i, and 0 elsewhere, for each i < O and I.
void pass_channels_on(Tensor& filters) {
  const Shape& shape = filters.shape();
  const std::int64_t cells = shape[2] * shape[3], centre = shape[2] / 2 * shape[3] + shape[3] / 2;
  const std::span<float> values = filters.span<float>();
  for (std::int64_t i = 0; i < std::min(shape[0], shape[1]); ++i) {
    const auto filter = static_cast<std::size_t>(i * shape[1] * cells);
    std::ranges::fill(values.subspan(filter, static_cast<std::size_t>(shape[1] * cells)), 0.0f);
    values[filter + static_cast<std::size_t>(i * cells + centre)] = 1;
  }
}

kernels::ContextOptions context_options(const DataParallelOptions& o, int replica, kernels::AbortFlag* abort) {
  kernels::ContextOptions context;
  context.threads = o.threads_per_replica;
  context.cores = cores_of(replica, o);
  context.deterministic = o.deterministic;
  context.fast_convolutions = !o.exact_convolutions;
  context.autotune = o.autotune;
  context.activations = activations_of(o);
  context.tf32 = o.tf32;
  context.norm_fusion = engine::test_modes().norm_fusion;
  context.threaded_streams = engine::test_modes().threaded_streams;
  context.delay_seed = engine::test_modes().delay_seed + static_cast<std::uint64_t>(replica);
  context.discrete_memory = engine::test_modes().discrete_memory;
  context.peer_processes = o.process_group && o.comm == Comm::host;
  context.abort = abort;
  return context;
}

// On GPUs, from the cost of an all-reduce, measured once per set of devices. A fixed size on other devices, for small
// networks, and if the result must not depend on timing. Collective.
std::size_t usual_bucket_bytes(engine::Team& team,
                               const std::vector<std::unique_ptr<kernels::Communicator>>& communicators) {
  const DataParallelOptions& o = team.setup.options;
  if (o.devices.front().kind != DeviceKind::cuda || team.setup.replica_count() == 1 || team.setup.pipelined() ||
      !o.autotune || o.deterministic ||
      !(engine::worth_tuning(*team.setup.stages.front().table) || engine::test_modes().tune_small_networks))
    return engine::default_bucket_bytes(team.setup.parameter_bytes());
  ProcessGroup* const group = o.process_group.get();
  const bool leads = group == nullptr || group->leads();
  const auto of_first = [&](double value) {
    if (group == nullptr) return value;
    const std::string first = group->from_first({reinterpret_cast<const char*>(&value), sizeof value});
    if (first.size() == sizeof value) std::memcpy(&value, first.data(), sizeof value);
    return value;
  };
  kernels::Backend& backend = kernels::backend(DeviceKind::cuda);
  const std::string name = communicators.front()->name();  // "p2p; cuda:0 and cuda:1 through the host (why)"
  std::string what =
      fmt::format("bucket bytes, {}, {} ranks", name.substr(0, name.find(';')), team.setup.replica_count());
  if (o.reduce_dtype != DType::f32) what += std::string(", sums in ") + to_string(o.reduce_dtype);
  double bytes = of_first(leads ? backend.remembered(o.devices, what).value_or(0) : 0);
  if (bytes < 1) {
    team.run([&](int local) {
      const auto at = static_cast<std::size_t>(local);
      const engine::AllReduceCost cost =
          engine::measure_all_reduce(*team.workers[at], *communicators[at], o.reduce_dtype);
      if (local == 0) bytes = static_cast<double>(engine::bucket_bytes_for(cost));
    });
    bytes = of_first(bytes);
    if (leads) backend.remember(o.devices, what, bytes);
  }
  return static_cast<std::size_t>(bytes);
}

// Why this process cannot use graphs; empty if it can. Other ranks may still refuse.
std::string graphs_refusal(const engine::Team& team) {
  const DataParallelOptions& o = team.setup.options;
  if (!team.workers.front()->context().has_graphs()) return "only GPUs have CUDA graphs";
  if (o.graphs == Graphs::never) return "set by the caller (--graphs never)";
  const bool may_deadlock = o.comm == Comm::nccl && team.workers.size() > 1;
  if (may_deadlock && o.graphs == Graphs::automatic) return kNcclInGraphs;
  if (may_deadlock) std::fprintf(stderr, "dp: warning: --graphs always: %s\n", kNcclInGraphs);
  return {};
}

}  // namespace

DataParallel::State::State(const Model& model, ResolvedOptions resolved)
    : setup(model, std::move(resolved.options)),
      chosen_options(setup.options),
      communicator_reason(std::move(resolved.communicator_reason)),
      threads_notice(std::move(resolved.threads_notice)),
      team(setup),
      reservations(team),
      state_dict(team),
      optimizer(team, state_dict) {
  const DataParallelOptions& options = setup.options;
  for (const Device device : options.devices) {
    device_names.push_back(to_string(device));
    device_identities.push_back(kernels::backend(device.kind).identity(device));
  }
  if (ProcessGroup* const group = options.process_group.get()) {
    device_names = group->exchange(device_names.front());
    device_identities = group->exchange(device_identities.front());
    for (int rank = 0; rank < setup.replica_count() && !group->one_host(); ++rank)
      device_names[static_cast<std::size_t>(rank)].insert(0, group->host_of(rank) + " ");
    for (const DType theirs : team.values_of_all_ranks(options.reduce_dtype))
      if (theirs != options.reduce_dtype)
        refuse("--reduce-dtype differs between the ranks; start all ranks with the same one");
  }
  make_workers();
  if (setup.pipelined()) chosen_options.pipeline.cuts.clear();
  for (const engine::Cut& cut : setup.cuts) chosen_options.pipeline.cuts.push_back(cut.name);
  if (*options.timeout_seconds > 0 || options.stop != nullptr) team.start_watchdog();  // the first collectives follow
  make_communicators();
  if (setup.scales_loss()) engine::write_loss_scale(team, {options.loss_scale.initial, 0});
  make_graphs();
  if (options.trace_steps > 0) make_tracers();
  set_initial_weights();
  if (!options.ema_decay) return;
  team.on_master([&](engine::Worker& master) {
    master.moving_average = std::make_unique<engine::MovingAverage>(
        master, *options.ema_decay, setup.stage(master.stage()).norms.running_statistics_size());
    master.moving_average->restart();
  });
}

// The first replica's plan chooses the parameter layouts of all.
void DataParallel::State::make_workers() {
  const DataParallelOptions& options = setup.options;
  std::vector<std::unique_ptr<kernels::Context>> contexts(options.devices.size());
  kernels::Backend& backend = kernels::backend(options.devices.front().kind);
  team.run([&](int number) {
    kernels::ContextOptions context = context_options(options, number, team.pool.abort_flag());
    auto& opened = contexts[static_cast<std::size_t>(number)];
    opened = backend.open(options.devices[static_cast<std::size_t>(number)], context);
    opened->bind_thread();
    if (number != 0) return;
    std::unique_ptr<kernels::Context> untuned;  // the plans of make_stages() never run
    if (context.autotune) context.autotune = false, untuned = backend.open(opened->device(), context);
    setup.make_stages(untuned ? *untuned : *opened, [&] {
      return backend.open(opened->device(), context_options(options, number, team.pool.abort_flag()));
    });
    opened->bind_thread();
  });
  reservations.require_room_for_weights(*contexts.front());

  team.run([&](int local) {
    const auto number = static_cast<std::size_t>(local);
    const int rank = options.process_group ? options.process_group->rank() : local / setup.stage_count();
    team.workers[number] =
        std::make_unique<engine::Worker>(team, number, std::move(contexts[number]), rank, local % setup.stage_count());
  });
}

// Also chooses the buckets, whose size may depend on the communicators' speed.
void DataParallel::State::make_communicators() {
  const DataParallelOptions& options = setup.options;
  const std::size_t count = options.devices.size();
  std::vector<std::unique_ptr<kernels::Communicator>> of_buckets(count), of_compute(count);
  team.run_watched([&] {
    kernels::Backend& backend = kernels::backend(options.devices.front().kind);
    const std::string name = communicator_name(options.comm);
    kernels::Context& first = team.workers.front()->context();
    if (options.process_group && setup.replica_count() > 1) {
      of_buckets.front() = backend.join(name, first, options.process_group->state());
      of_compute.front() = backend.join(name, first, options.process_group->state());
    } else if (setup.shards() > 1) {
      team.connect_replicas(of_buckets, backend, name);
      if (setup.replica_count() > 1) team.connect_replicas(of_compute, backend, name);
    }
    for (const auto& worker : team.workers) worker->compute_communicator = std::move(of_compute[worker->number]);
    team.link_stages(backend);
  });
  const std::size_t usual = options.bucket_bytes != 0 ? 0 : usual_bucket_bytes(team, of_buckets);
  std::vector<std::vector<engine::Bucket>> buckets;  // per stage
  for (const engine::Stage& stage : setup.stages) buckets.push_back(setup.buckets_of(stage, usual));
  if (usual != 0) chosen_options.bucket_bytes = usual;
  std::vector<engine::GradientNormOfStages> norms;
  team.run_watched([&] { norms = team.connect_stages_for_norm(buckets); });
  const LossScaleOptions& scale = options.loss_scale;
  std::optional<kernels::LossScaling> scaling;
  if (setup.scales_loss()) scaling = {scale.growth, scale.backoff, static_cast<std::uint32_t>(scale.growth_interval)};
  team.run([&](int local) {
    const auto number = static_cast<std::size_t>(local);
    engine::Worker& worker = *team.workers[number];
    const auto stage = static_cast<std::size_t>(worker.stage());
    worker.gradient_sync = std::make_unique<engine::GradientSync>(
        worker, std::move(of_buckets[number]), options.reduce, buckets[stage], *setup.stage(worker.stage()).groups,
        setup.failpoints, options.reduce_dtype, scaling, options.ema_decay.has_value(), std::move(norms[number]));
    worker.arenas.keep_while(team.updates_held);
  });
}

void DataParallel::State::make_graphs() {
  const DataParallelOptions& options = setup.options;
  std::string refusal = graphs_refusal(team);
  bool required = options.graphs == Graphs::always;
  if (options.process_group && setup.replica_count() > 1) {
    // Graphs require that all ranks use them and trace the same steps.
    struct Wish {
      std::int64_t graphs, required, trace_first, trace_steps;
    };
    const std::vector<Wish> wishes = team.values_of_all_ranks(
        Wish{refusal.empty() && setup.failpoints.empty(), required, options.trace_first, options.trace_steps});
    for (const Wish& wish : wishes) required = required || wish.required != 0;
    for (const Wish& wish : wishes)
      if (refusal.empty() && (wish.graphs == 0 || wish.trace_first != wishes.front().trace_first ||
                              wish.trace_steps != wishes.front().trace_steps))
        refusal = "a rank disables graphs, or traces other steps";
  }
  if (required && !refusal.empty()) refuse("--graphs always is not possible: " + refusal);
  team.graphs = std::make_unique<engine::StepGraphs>(team, std::move(refusal), required);
}

void DataParallel::State::make_tracers() {
  for (const auto& worker : team.workers) {
    worker->tracer = std::make_unique<engine::Tracer>(setup.options.trace_first, setup.options.trace_steps);
    worker->clock.trace(*worker->tracer);
    worker->gradient_sync->trace(*worker->tracer);
    if (worker->compute_communicator) worker->compute_communicator->trace(&worker->tracer->compute);
  }
}

void DataParallel::State::set_initial_weights() {
  engine::StateDict::Tensors initial;
  for (std::size_t i = 0; i < setup.model.parameters().size(); ++i) {
    const ParameterSpec& spec = setup.model.parameters()[i];
    Tensor values(spec.shape);
    Random random(setup.options.seed, RandomUse::init, i);
    for (float& value : values.span<float>()) value = draw(spec.init, random);
    if (spec.init.kind == InitKind::dirac) pass_channels_on(values);
    initial.emplace_back(spec.name, std::move(values));
  }
  for (const BufferSpec& buffer : setup.model.buffers()) {
    Tensor values(buffer.shape, buffer.type);
    if (buffer.kind == BufferKind::running_var)
      for (float& value : values.span<float>()) value = 1;
    initial.emplace_back(buffer.name, std::move(values));
  }
  state_dict.set_weights(initial);
}

void DataParallel::State::require_two_values(std::int64_t rows, std::int64_t global_rows, int micro_batches) const {
  const engine::Norm* const norm = setup.first_norm_on_1x1_images();
  if (norm == nullptr) return;
  const bool sync = setup.options.batch_norm == BatchNormMode::sync, ranks = setup.options.process_group != nullptr;
  bool single = sync && ranks && global_rows == 1;  // a micro-batch's rows on other ranks are unknown here
  const int parts = sync || ranks ? 1 : setup.shards();
  for (int micro = 0; micro < micro_batches && !(sync && ranks); ++micro) {
    const std::int64_t own = engine::shard_of(rows, micro, micro_batches, Split::balanced).size();
    for (int part = 0; part < parts; ++part)
      single = single || (parts == 1 ? own : setup.rows_of_shard(own, part).size()) == 1;
  }
  if (!single) return;
  throw Error(
      ErrorCode::usage,
      "batch normalisation '" + norm->name + "' requires two values per channel, but " +
          (sync ? "a batch or micro-batch has one: its images are 1x1 and there is one sample; use a larger batch, "
                  "fewer micro-batches, or --drop-last for a short last batch"
                : "a shard has one: its images are 1x1 and the shard has one sample; use a larger batch, fewer "
                  "replicas, micro-batches or logical shards, --drop-last for a short last batch, or --bn sync"));
}

kernels::StepInputs DataParallel::State::step_inputs(std::int64_t global_batch, const Optimizer* update) const {
  const DataParallelOptions& options = setup.options;
  kernels::StepInputs inputs;
  inputs.seed = options.seed;
  inputs.step = static_cast<std::uint64_t>(team.step);
  inputs.loss_scale = 1.0f / static_cast<float>(global_batch);
  if (update != nullptr) inputs.label_smoothing = options.label_smoothing;  // a test loss is plain cross-entropy
  inputs.max_norm = options.clip_grad_norm ? static_cast<float>(*options.clip_grad_norm) : 0.0f;
  inputs.skip_nonfinite = options.on_nonfinite == OnNonfinite::skip;
  if (update != nullptr) inputs.update = optimizer.inputs(*update);
  if (first().moving_average) inputs.average_share = first().moving_average->next_share();
  return inputs;
}

}  // namespace dp
