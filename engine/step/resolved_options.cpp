#include "engine/step/resolved_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dp/default_devices.h"
#include "dp/error.h"
#include "engine/base/split.h"
#include "engine/process_group/process_group_state.h"
#include "engine/step/parallel_option_table.h"
#include "kernels/device/host/cores.h"

namespace dp {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::usage, why); }

}  // namespace

std::string communicator_name(Comm comm) { return parallel_option_table().text("comm", {.comm = comm}); }

int ranks_of(const DataParallelOptions& options) {
  return options.process_group ? options.process_group->size()
                               : static_cast<int>(options.devices.size()) / options.pipeline.stages;
}

int shards_of(const DataParallelOptions& options) {
  return options.logical_shards > 0 ? options.logical_shards : ranks_of(options);
}

std::optional<DType> activations_of(const DataParallelOptions& options) {
  if (options.amp == Amp::off) return std::nullopt;
  return options.amp == Amp::bfloat16 ? DType::bf16 : DType::f16;
}

std::int64_t bucket_granularity(const DataParallelOptions& options) {
  if (options.comm != Comm::nccl || options.reduce != Reduce::sharded) return 1;
  return ranks_of(options) * kernels::kSliceBlock;
}

// Layers read weights in 16 bits, but biases and normalisation parameters in 32 bits. Stored separately, the weights
// can be gathered in 16 bits.
bool vectors_first(const DataParallelOptions& options) {
  return options.amp != Amp::off && options.reduce == Reduce::sharded && ranks_of(options) > 1;
}

namespace {

constexpr const char* kAskedFor = "set by the caller (--comm)";
constexpr double kGpuTimeout = 300;  // seconds; also dp_train's default

// Sets o.comm to a backend's default communicator. Returns the reason.
std::string take(const kernels::CommunicatorChoice& choice, DataParallelOptions& o) {
  const OptionTable<DataParallelOptions>& table = parallel_option_table();
  table.set(*table.find("comm"), o, choice.name);
  return choice.reason;
}

// Resolves the options of a rank of a process group. Returns the reason for o.comm.
std::string resolve_ranks(DataParallelOptions& o) {
  const ProcessGroup& group = *o.process_group;
  if (o.devices.empty()) {
    const std::vector<Device> all = default_devices();
    const int count = all.front().kind == DeviceKind::cuda ? static_cast<int>(all.size()) : 0;
    // A single visible GPU was selected by the launcher (CUDA_VISIBLE_DEVICES).
    const int own = count == 1 ? 0 : group.local_rank();
    if (count > 0 && own >= count)
      refuse(fmt::format("{} ranks share this host, but it has {} GPUs; start one rank per GPU", group.local_size(),
                         count));
    o.devices = count > 0 ? gpus({own}) : cpus(1);
  }
  if (o.devices.size() != 1)
    refuse(fmt::format("a rank of a process group has one device, not {}; start more ranks", o.devices.size()));
  if (o.reduce != Reduce::automatic && o.reduce != Reduce::all_reduce)
    refuse(fmt::format("--reduce {} requires one process (--engine dp): ranks use allreduce; remove it",
                       parallel_option_table().text("reduce", o)));
  if (o.loss == LossAt::gathered)
    refuse("--loss gathered requires one process (--engine dp): each rank computes its own loss; use --loss local");
  if (o.logical_shards > 0) refuse("--logical-shards requires one process (--engine dp)");
  if (!o.split_weights.empty())
    refuse("--split with weights requires one process (--engine dp): ranks have shards of equal size");
  o.reduce = Reduce::all_reduce;
  if (o.comm != Comm::automatic) return kAskedFor;
  return take(kernels::backend(o.devices.front().kind).default_communicator(o.process_group->state()), o);
}

void check_rounded_sums(const DataParallelOptions& o) {
  if (o.devices.front().kind == DeviceKind::reference)
    refuse("--reduce-dtype bfloat16: reference devices reduce in float64; remove the flag");
  if (o.comm == Comm::mpi)
    refuse("--reduce-dtype bfloat16 is not available with --comm mpi: use float32, or --comm host on one host");
}

}  // namespace

namespace {

void check_split_weights(const DataParallelOptions& o) {
  if (o.split_weights.empty()) return;
  const std::string given = "--split " + engine::split_text(o);
  if (o.split_weights.size() != o.devices.size())
    refuse(fmt::format("{} has {} weights for {} replicas; give one weight per replica, or --split balanced", given,
                       o.split_weights.size(), o.devices.size()));
  for (const int weight : o.split_weights)
    if (weight < 1 || weight > engine::kMostSplitWeight)
      refuse(fmt::format("{}: weights are whole numbers from 1 to {}", given, engine::kMostSplitWeight));
  if (o.split == Split::chunk) refuse(given + " excludes Split::chunk");
  if (o.logical_shards > 0) refuse(given + " excludes --logical-shards, whose shards have equal sizes");
}

constexpr int kMicroBatchesPerStage = 4;

// Expresses the micro-batches by grad_accum_steps and logical shards. Training steps use only these two, with and
// without a pipeline.
void resolve_pipeline(DataParallelOptions& o) {
  PipelineOptions& pipeline = o.pipeline;
  if (pipeline.stages == 1) {
    if (pipeline.micro_batches != 0 || !pipeline.cuts.empty() || pipeline.measured ||
        pipeline.recompute != Recompute::none)
      refuse("micro-batches, cuts and recomputation require at least two stages; use --pipeline-stages 2 or more");
    return;
  }
  const std::string given = fmt::format("--pipeline-stages {}", pipeline.stages);
  const int devices = static_cast<int>(o.devices.size());
  if (o.process_group) refuse(given + " requires one process (--engine dp)");
  if (devices % pipeline.stages != 0)
    refuse(fmt::format("{} requires that number of devices for each replica, but there are {}; use a multiple of {}",
                       given, devices, pipeline.stages));
  if (o.comm == Comm::nccl) refuse(given + " excludes --comm nccl: stages hand tensors over by p2p; use --comm p2p");
  if (o.loss == LossAt::gathered)
    refuse("--loss gathered excludes " + given + ": the last stage computes the loss; use --loss local");
  if (o.split == Split::chunk || !o.split_weights.empty())
    refuse("--split " + engine::split_text(o) + " excludes " + given + "; use --split balanced");
  if (!pipeline.cuts.empty() && static_cast<int>(pipeline.cuts.size()) + 1 != pipeline.stages)
    refuse(fmt::format("{} requires {} cuts, not {}; name the first block of each stage but the first", given,
                       pipeline.stages - 1, pipeline.cuts.size()));
  if (pipeline.measured && pipeline.cuts.empty() && o.deterministic)
    refuse("--deterministic excludes --pipeline-split measured, which depends on timing; use auto");
  if (o.logical_shards > 0 && o.batch_norm == BatchNormMode::sync)
    refuse("--bn sync excludes --logical-shards with " + given +
           ": its statistics need all micro-batches at once; use --bn pooled or master");
  if (pipeline.recompute != Recompute::none && pipeline.schedule == PipelineSchedule::zero_bubble)
    refuse("--recompute excludes --schedule zb-h1, which saves activations for its delayed weight gradients; use 1f1b");
  int& micro_batches = pipeline.micro_batches;
  if (o.logical_shards > 0) {
    const int shards = o.logical_shards / ranks_of(o);  // of one replica
    if (o.grad_accum_steps > 1 || (micro_batches != 0 && micro_batches != shards))
      refuse(
          fmt::format("with --logical-shards {} the micro-batches of a replica are its {} shards; remove "
                      "--micro-batches and --grad-accum-steps",
                      o.logical_shards, shards));
    micro_batches = shards;
    return;
  }
  if (micro_batches == 0)
    micro_batches = o.grad_accum_steps > 1 ? o.grad_accum_steps : kMicroBatchesPerStage * pipeline.stages;
  if (o.grad_accum_steps > 1 && o.grad_accum_steps != micro_batches)
    refuse(fmt::format("--grad-accum-steps {} and --micro-batches {} differ; with {} use --micro-batches alone",
                       o.grad_accum_steps, micro_batches, given));
  o.grad_accum_steps = micro_batches;
}

// Returns a notice if a limit other than the affinity mask reduces the threads of the replicas. Such a limit, or a CPU
// quota, means that other processes use the same cores: then threads are not pinned, or all would be on the first ones.
std::string resolve_threads(DataParallelOptions& o) {
  const int processes = o.process_group ? std::max(1, o.process_group->local_size()) : 1;
  const int replicas = static_cast<int>(o.devices.size());
  const auto share = [&](int cores) { return std::max(1, cores / replicas); };
  const int by_mask = share(static_cast<int>(process_cores().size()) / processes);
  int wanted = o.threads_per_replica;
  std::string source;
  if (wanted == 0) {
    const CoreLimit cores = available_cores(processes);
    wanted = by_mask;
    o.threads_per_replica = share(cores.cores);
    source = cores.source;
  }
  if (const auto team = kernels::largest_team(); team && team->cores < o.threads_per_replica)
    o.threads_per_replica = team->cores, source = team->source;
  const auto quota = kernels::cpu_quota();
  if (quota && quota->cores < static_cast<int>(process_cores().size())) o.pin_threads = false;
  if (o.devices.front().kind != DeviceKind::cpu || o.threads_per_replica >= wanted) return "";
  o.pin_threads = false;
  return fmt::format("{} {} per replica instead of {}: {}", o.threads_per_replica,
                     o.threads_per_replica == 1 ? "thread" : "threads", wanted, source);
}

}  // namespace

ResolvedOptions resolved(DataParallelOptions o) {
  parallel_option_table().check(o);
  if (o.devices.empty() && !o.process_group) o.devices = default_devices();
  resolve_pipeline(o);
  std::string communicator_reason = kAskedFor;
  if (o.process_group) communicator_reason = resolve_ranks(o);
  if (!o.process_group && o.comm == Comm::mpi)
    refuse("--comm mpi requires --engine ddp; remove it, or use host or p2p");
  for (const Device& device : o.devices)
    if (device.kind != o.devices.front().kind)
      refuse(fmt::format("devices of different kinds, {} and {}, cannot train together", to_string(o.devices.front()),
                         to_string(device)));
  if (o.amp == Amp::float16 && o.devices.front().kind == DeviceKind::cpu)
    refuse("--amp-dtype float16 requires GPUs; use bfloat16");
  if (o.output_loss && o.label_smoothing > 0)
    refuse(fmt::format("--label-smoothing is for class numbers; the loss {} has targets, which the data set can smooth",
                       name_of(*o.output_loss)));
  if (o.soft_targets && o.output_loss)
    refuse(fmt::format("soft targets are for cross-entropy, not for the loss {}", name_of(*o.output_loss)));
  if (o.sample_weights && !o.output_loss && !o.soft_targets)
    refuse("weights of samples require targets: set output_loss or soft_targets");
  if (o.soft_targets && o.label_smoothing > 0) refuse("soft targets exclude label_smoothing: smooth the targets");
  if (o.own_loss) {
    const auto require = [&](bool holds, const char* what) {
      if (!holds) refuse(fmt::format("the loss '{}' of this program {}", o.own_loss->name, what));
    };
    require(o.own_loss->function != nullptr, "has no function");
    require(!o.output_loss && !o.soft_targets && o.label_smoothing == 0,
            "replaces --output-loss, soft targets and --label-smoothing; remove them");
    require(!o.process_group, "requires one process (--engine dp)");
    require(o.pipeline.stages == 1 && o.grad_accum_steps == 1,
            "requires whole batches, without pipeline stages or "
            "micro-batches");
    require(o.logical_shards == 0 || o.logical_shards == static_cast<int>(o.devices.size()),
            "requires one logical shard per replica");
    require(o.amp != Amp::float16, "cannot be scaled as float16 requires; use bfloat16");
  }
  if (!(std::isnormal(o.loss_scale.initial) && o.loss_scale.initial > 0 && o.loss_scale.growth >= 1 &&
        std::isfinite(o.loss_scale.growth) && o.loss_scale.backoff > 0 && o.loss_scale.backoff < 1 &&
        o.loss_scale.growth_interval >= 1))
    refuse(
        "a loss scale begins at a positive number, grows by a factor of at least 1 after at least one step, and backs "
        "off by one below 1");
  if (!o.timeout_seconds) o.timeout_seconds = o.devices.front().kind == DeviceKind::cuda ? kGpuTimeout : 0;
  if (o.trace_first < 0 || o.trace_steps < 0) refuse("trace_first and trace_steps must not be negative");
  check_split_weights(o);
  if (o.logical_shards > 0) {
    if (o.logical_shards % ranks_of(o) != 0)
      refuse(fmt::format("--logical-shards {} is not a multiple of the {} replicas; use a multiple of {}",
                         o.logical_shards, ranks_of(o), ranks_of(o)));
    if (o.loss == LossAt::gathered)
      refuse("--loss gathered excludes --logical-shards: each shard computes its own loss; use --loss local");
    o.deterministic = true;
    if (o.threads_per_replica == 0) o.threads_per_replica = 1;
  }
  if (o.comm == Comm::automatic && o.pipeline.stages > 1 && o.devices.front().kind == DeviceKind::cuda)
    communicator_reason = take({"p2p", "the stages of a pipeline hand tensors over as p2p does"}, o);
  if (o.comm == Comm::automatic)
    communicator_reason =
        take(kernels::backend(o.devices.front().kind).default_communicator(o.devices, o.logical_shards > 0), o);
  if (o.comm == Comm::nccl && o.logical_shards > 0)
    refuse("--logical-shards requires one order of summation, which nccl does not guarantee; use --comm p2p");
  if (o.reduce_dtype != DType::f32) check_rounded_sums(o);
  if (o.reduce == Reduce::automatic)
    o.reduce = ranks_of(o) > 1 ? Reduce::sharded : Reduce::master;  // docs/decisions/0011
  std::string threads_notice = resolve_threads(o);
  return {std::move(o), std::move(communicator_reason), std::move(threads_notice)};
}

}  // namespace dp
