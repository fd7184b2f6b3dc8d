// Construction of a DataParallel: opens contexts, lays out and initialises parameters.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "dp/error.h"
#include "dp/random.h"
#include "engine/base/test_modes.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/process_group/process_group_state.h"
#include "kernels/host/cores.h"

namespace dp {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::usage, why); }

constexpr const char* kNcclInGraphs =
    "NVIDIA warns that NCCL in CUDA graphs may deadlock where one process drives several GPUs, and recommends one GPU "
    "per process, as with --engine ddp (NCCL manual, \"Using NCCL with CUDA Graphs\")";

// One core per thread of `replica`. Empty without pin_threads, or if the host has too few cores for all its replicas.
std::vector<int> cores_of(int replica, const DataParallelOptions& o) {
  const std::vector<int> cores = kernels::usable_cores();
  const auto threads = static_cast<std::size_t>(o.threads_per_replica);
  const int rank = o.process_group ? o.process_group->local_rank() : replica;
  const std::size_t replicas =
      o.process_group ? static_cast<std::size_t>(o.process_group->local_size()) : o.devices.size();
  if (!o.pin_threads || threads * replicas > cores.size()) return {};
  const auto first = cores.begin() + static_cast<std::ptrdiff_t>(threads * static_cast<std::size_t>(rank));
  return {first, first + static_cast<std::ptrdiff_t>(threads)};
}

float draw(const Init& init, Random& random) {
  switch (init.kind) {
    case InitKind::uniform: return random.uniform(-init.value, init.value);
    case InitKind::normal: return init.value * random.normal();
    case InitKind::constant: break;
  }
  return init.value;
}

}  // namespace

DataParallel::State::State(const Model& m, ResolvedOptions resolved)
    : model(m),
      options(std::move(resolved.options)),
      communicator_reason(std::move(resolved.communicator_reason)),
      norms(m),
      pool(static_cast<int>(options.devices.size())) {
  if (options.batch_norm == BatchNormMode::sync) {
    forward_gathers = engine::forward_gathers(norms, shards());
    backward_gathers = engine::backward_gathers(norms, shards());
  }
  if (options.batch_norm == BatchNormMode::pooled) pooled_gathers = engine::forward_gathers(norms, shards());
  if (options.process_group) attached.to(*options.process_group, pool.abort_flag());
  for (const Device device : options.devices) device_names.push_back(to_string(device));
  if (ProcessGroup* const group = options.process_group.get()) {
    device_names = group->exchange(device_names.front());
    for (int rank = 0; rank < size() && !group->one_host(); ++rank)
      device_names[static_cast<std::size_t>(rank)].insert(0, group->host_of(rank) + " ");
    for (const DType theirs : of_all_ranks(options.reduce_dtype))
      if (theirs != options.reduce_dtype)
        refuse("--reduce-dtype differs between the ranks; start all ranks with the same one");
  }
  const std::size_t count = options.devices.size();
  std::vector<std::unique_ptr<kernels::Context>> contexts(count);
  replicas.resize(count);
  gradient_syncs.resize(count);
  part_bytes.assign(count, std::vector<std::size_t>(static_cast<std::size_t>(size())));
  kernels::Backend& backend = kernels::backend(options.devices.front().kind);

  run([&](int rank) {
    kernels::ContextOptions context;
    context.threads = options.threads_per_replica;
    context.cores = cores_of(rank, options);
    context.deterministic = options.deterministic;
    context.fast_convolutions = options.fast_convolutions;
    context.autotune = options.autotune;
    context.activations = activations_of(options);
    context.tf32 = options.tf32;
    context.norm_fusion = engine::test_modes().norm_fusion;
    context.threaded_streams = engine::test_modes().threaded_streams;
    context.delay_seed = engine::test_modes().delay_seed + static_cast<std::uint64_t>(rank);
    context.discrete_memory = engine::test_modes().discrete_memory;
    context.peer_processes = options.process_group && options.comm == Comm::host;
    context.abort = pool.abort_flag();
    auto& opened = contexts[static_cast<std::size_t>(rank)];
    opened = backend.open(options.devices[static_cast<std::size_t>(rank)], context);
    opened->bind_thread();
    if (rank != 0) return;
    std::unique_ptr<kernels::Context> untuned;  // the plan below never runs
    if (context.autotune) context.autotune = false, untuned = backend.open(opened->device(), context);
    const engine::Plan plan(model, untuned ? *untuned : *opened, plan_options(kLayoutRows, true, false, true), nullptr,
                            norms);
    table = std::make_unique<engine::ParameterTable>(model, plan.parameter_layouts(), opened->compute_type(),
                                                     bucket_granularity(options), vectors_first(options));
    ready_in_segment.resize(backward_gathers.empty() ? 0 : 1);
    for (const engine::PlanStep& piece : plan.backward()) {
      if (ready_in_segment.empty()) break;
      if (piece.ready_from >= 0) ready_in_segment.back().push_back(piece.ready_from);
      if (piece.gathers) ready_in_segment.emplace_back();
    }
  });
  if (table->entries().empty()) refuse("model '" + model.name() + "' has no parameters to train");
  groups = std::make_unique<engine::ParameterGroups>(options.parameter_groups, *table);
  require_room_for_weights(*contexts.front());

  engine::ReplicaOptions replica_options;
  replica_options.shards = shards();
  replica_options.local_shards = shards() / size();
  replica_options.in_turns = !forward_gathers.empty() && replica_options.local_shards > 1;
  replica_options.scales_loss = scales_loss();
  run([&](int local) {
    const auto r = static_cast<std::size_t>(local);
    engine::ReplicaOptions own = replica_options;
    own.rank = options.process_group ? options.process_group->rank() : local;
    replicas[r] = std::make_unique<engine::Replica>(model, std::move(contexts[r]), *table, norms, own);
  });

  if (*options.timeout_seconds > 0) watch();  // the first collectives follow

  // Declared after the replicas, which own the contexts, hence destroyed first, even on exceptions.
  std::vector<kernels::Context*> pointers;
  for (const auto& replica : replicas) pointers.push_back(&replica->context());
  std::vector<std::unique_ptr<kernels::Communicator>> bucket_comm(count);
  try {
    const Watched call(watchdog.get());
    const std::string_view name = communicator_name(options.comm);
    if (options.process_group && size() > 1) {
      bucket_comm.front() = backend.join(name, *pointers.front(), options.process_group->state());
      io.push_back(backend.join(name, *pointers.front(), options.process_group->state()));
    } else if (shards() > 1) {
      bucket_comm = backend.make_communicators(name, pointers);
      if (count > 1) io = backend.make_communicators(name, pointers);
    }
  } catch (...) {
    rethrow_cause();
  }
  const std::vector<engine::Bucket> buckets = make_buckets(bucket_comm);
  const LossScaleOptions& scale = options.loss_scale;
  std::optional<kernels::LossScaling> scaling;
  if (scales_loss()) scaling = {scale.growth, scale.backoff, static_cast<std::uint32_t>(scale.growth_interval)};
  run([&](int local) {
    const auto r = static_cast<std::size_t>(local);
    gradient_syncs[r] = std::make_unique<engine::GradientSync>(*replicas[r], std::move(bucket_comm[r]), options.reduce,
                                                               buckets, *groups, failpoints, options.reduce_dtype,
                                                               scaling, options.ema_decay.has_value());
  });
  if (scaling) set_loss_scale({options.loss_scale.initial, 0});
  make_graphs();
  if (options.trace_steps > 0) trace();

  std::vector<NamedTensor> initial;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    Tensor values(spec.shape);
    Random random(options.seed, RandomUse::init, i);
    for (float& value : values.span<float>()) value = draw(spec.init, random);
    initial.emplace_back(spec.name, std::move(values));
  }
  for (const BufferSpec& buffer : model.buffers()) {
    Tensor values(buffer.shape, buffer.type);
    if (buffer.kind == BufferKind::running_var)
      for (float& value : values.span<float>()) value = 1;
    initial.emplace_back(buffer.name, std::move(values));
  }
  import_arena(Arena::value, initial);
  make_average();
  restart_average();
}

// Why this process cannot use graphs; empty if it can. Other ranks may still refuse.
std::string DataParallel::State::graphs_refusal() const {
  if (!replicas.front()->context().has_graphs()) return "only GPUs have CUDA graphs";
  if (options.graphs == Graphs::never) return "set by the caller (--graphs never)";
  const bool may_deadlock = options.comm == Comm::nccl && replicas.size() > 1;
  if (may_deadlock && options.graphs == Graphs::automatic) return kNcclInGraphs;
  if (may_deadlock) std::fprintf(stderr, "dp: warning: --graphs always: %s\n", kNcclInGraphs);
  return {};
}

void DataParallel::State::make_graphs() {
  engine::StepGraphs::Members members;
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    members.replicas.push_back(replicas[r].get());
    members.gradient_syncs.push_back(gradient_syncs[r].get());
    if (!io.empty()) members.io.push_back(io[r].get());
  }
  std::string refusal = graphs_refusal();
  bool required = options.graphs == Graphs::always;
  if (options.process_group && size() > 1) {
    // Graphs require that all ranks use them and trace the same steps.
    struct Wish {
      std::int64_t graphs, required, trace_first, trace_steps;
    };
    const std::vector<Wish> wishes =
        of_all_ranks(Wish{refusal.empty() && failpoints.empty(), required, options.trace_first, options.trace_steps});
    for (const Wish& wish : wishes) required = required || wish.required != 0;
    for (const Wish& wish : wishes)
      if (refusal.empty() && (wish.graphs == 0 || wish.trace_first != wishes.front().trace_first ||
                              wish.trace_steps != wishes.front().trace_steps))
        refusal = "a rank disables graphs, or traces other steps";
    members.all_ranks = [this](bool yes) {
      const std::vector<char> all = of_all_ranks(static_cast<char>(yes));
      return std::count(all.begin(), all.end(), char{1}) == size();
    };
  }
  if (required && !refusal.empty()) refuse("--graphs always is not possible: " + refusal);
  graphs = std::make_unique<engine::StepGraphs>(std::move(members), pool.abort_flag(), std::move(refusal), required);
}

// After a failure a device may wait for another device that failed, and freeing its memory would block. This waits
// until every device has finished its work. Context::idle() limits the wait.
void DataParallel::State::await_devices() noexcept {
  for (const auto& replica : replicas) {
    if (!replica || replica->context().host_accessible()) continue;
    try {
      while (!replica->context().idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // the device has failed and runs nothing
    }
  }
}

// Objects that use a context are destroyed before the replica that owns it. A replica frees its own memory.
DataParallel::State::~State() {
  watchdog.reset();
  if (pool.failed()) await_devices();
  graphs.reset();
  logits = {};
  gathered_logits.reset();
  gathered_grad.reset();
  gathered_labels.reset();
  loss_workspace.reset();
  average.reset();
  loss_ops.clear();
  io.clear();
  for (const auto& gradient_sync : gradient_syncs)
    if (gradient_sync) gradient_sync->stop();
  gradient_syncs.clear();
  replicas.clear();
}

void DataParallel::State::rethrow_with_place(const engine::Replica& replica) const {
  const Device device = options.devices[local(replica)];
  const std::string place =
      fmt::format("{} {} ({}) failed in {} of step {}: ", options.process_group ? "rank" : "replica", replica.rank(),
                  to_string(device), engine::to_string(replica.phase()), step);
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), place + error.what(), error.others());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::device, place + "out of host memory; use a smaller batch or fewer replicas");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::device, place + error.what());
  }
}

kernels::StepInputs DataParallel::State::step_inputs(std::int64_t global_batch, const Optimizer* optimizer) const {
  kernels::StepInputs inputs;
  inputs.seed = options.seed;
  inputs.step = static_cast<std::uint64_t>(step);
  inputs.loss_scale = 1.0f / static_cast<float>(global_batch);
  inputs.label_smoothing = options.label_smoothing;
  inputs.max_norm = options.clip_grad_norm ? static_cast<float>(*options.clip_grad_norm) : 0.0f;
  inputs.skip_nonfinite = options.on_nonfinite == OnNonfinite::skip;
  if (optimizer == nullptr) return inputs;
  groups->set(inputs.update, *optimizer);
  inputs.update.constants = engine::constants_of(*optimizer);
  inputs.update.updates = updates;
  return inputs;
}

void DataParallel::State::number_rows(std::int64_t rows) {
  for (auto next = static_cast<std::int64_t>(row_numbers.size()); next < rows; ++next) row_numbers.push_back(next);
}

engine::ShardInput DataParallel::State::input_of(const Batch& batch, kernels::Range rows) const {
  engine::ShardInput input;
  input.rows = rows.size();
  if (batch.resident.set)
    input.resident = &batch.resident;
  else
    input.images = batch.images.data<float>() + rows.begin * model.input().numel();
  if (!batch.labels.empty()) input.labels = batch.labels.data<std::int32_t>() + rows.begin;
  input.samples = (batch.samples.empty() ? row_numbers.data() : batch.samples.data<std::int64_t>()) + rows.begin;
  return input;
}

DataParallel::DataParallel(const Model& model, const DataParallelOptions& options)
    : state_(std::make_unique<State>(model, resolved(options))) {}
DataParallel::~DataParallel() = default;

void DataParallel::State::place(engine::Replica& replica, const Placed& batch) {
  const auto row = static_cast<std::size_t>(model.output().numel()) * size_of(table->type());
  std::size_t exchanged = buffer_bytes() + moments_bytes();  // bytes of the largest call on io
  for (int micro = 0; micro < batch.micro_batches; ++micro) {
    const std::int64_t rows = engine::shard_of(batch.rows, micro, batch.micro_batches, Split::balanced).size();
    if (rows == 0) continue;
    for (int shard = 0; shard < replica.local_shards(); ++shard) {
      const kernels::Range own = rows_of(rows, replica, shard);
      if (own.size() == 0) continue;
      replica.plan(plan_options(own.size(), batch.training, micro > 0, batch.gathers));
      if (batch.set) replica.upload_images({batch.set, batch.augment}, own.size());
      replica.reserve_copies(own.size(), batch.set != nullptr);
      replica.context().reserve_copies(batch.gathers ? static_cast<std::size_t>(own.size()) * row : 0);
    }
    if (!batch.gathers) continue;
    exchanged = std::max(exchanged, static_cast<std::size_t>(rows) * row);
    if (replica.rank() != 0) continue;
    replica.context().reserve_copies(static_cast<std::size_t>(rows) * sizeof(std::int32_t));
    reserve_gather(rows);
    if (options.loss == LossAt::gathered) gathered_loss_op(rows);
  }
  if (!io.empty()) io_of(replica).reserve(exchanged);
}

// Allocates on all replicas before any of them enqueues a collective. An allocation may wait until all devices are
// idle. A collective that waits for this thread would then never end.
void DataParallel::State::reserve(const Placed& batch) {
  if (size() == 1 || placed.contains(batch)) return;
  require_room_for({batch}, /*state=*/{}, /*together=*/false);
  on_replicas([&](engine::Replica& replica, engine::GradientSync&) { place(replica, batch); });
  placed.insert(batch);
}

void DataParallel::State::reserve_state(const Optimizer& optimizer) {
  const engine::UpdateKind kind = engine::kind_of(optimizer);
  if (kind.state || state_rule.value_or(kind.rule) != kind.rule) reserve_state_of(kind.rule);
}

void DataParallel::State::reserve_state_of(kernels::UpdateRule rule) {
  if (state_rule == rule) return;
  if (state_rule) wait_for_all(), updates = 0;
  on_replicas(
      [&](engine::Replica&, engine::GradientSync& gradient_sync) { gradient_sync.optimizer().ensure_state(rule); });
  state_rule = rule;
  graphs->prepared();
}

void DataParallel::prepare(const std::vector<std::int64_t>& train_batches,
                           const std::vector<std::int64_t>& eval_batches, const DeviceImages& train_images,
                           const DeviceImages& eval_images, const Optimizer& optimizer) {
  State& s = *state_;
  engine::check(optimizer);
  for (const DeviceImages& images : {train_images, eval_images})
    if (images.set) check_images(images.set->images.shape(), s.model);
  for (const std::int64_t rows : train_batches)
    s.require_two_values(rows, s.options.process_group ? rows * s.size() : rows, s.options.grad_accum_steps);
  std::vector<State::Placed> batches;
  for (const std::int64_t rows : train_batches)
    s.number_rows(rows), batches.push_back(s.training_batch(rows, train_images));
  for (const std::int64_t rows : eval_batches) batches.push_back(State::evaluated_batch(rows, eval_images));
  const engine::UpdateKind kind = engine::kind_of(optimizer);
  s.require_room_for(batches, kind.state ? std::optional(kind.rule) : std::nullopt, /*together=*/true);
  s.on_replicas([&](engine::Replica& replica, engine::GradientSync&) {
    for (const State::Placed& batch : batches) s.place(replica, batch);
  });
  s.reserve_state(optimizer);
  s.placed.insert(batches.begin(), batches.end());
  s.graphs->prepared();
  if (s.options.process_group) s.rank_memory = s.of_all_ranks(s.replicas.front()->memory_use());
}

}  // namespace dp
