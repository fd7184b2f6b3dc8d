// The defaults that the engine resolves, and the messages for options that exclude each other.
#include "engine/step/resolved_options.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "dp/error.h"
#include "dp/process_group.h"
#include "kernels/comm/communicator.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

using Change = std::function<void(DataParallelOptions&)>;

struct Row {
  Change change;
  std::string text;  // empty: accepted
};

std::string refusal_of(const DataParallelOptions& options) {
  try {
    resolved(options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "";
}

void check_all(const DataParallelOptions& good, const std::vector<Row>& rows) {
  CHECK(refusal_of(good).empty());
  for (const Row& row : rows) {
    DataParallelOptions options = good;
    row.change(options);
    CHECK(refusal_of(options) == row.text);
  }
}

DataParallelOptions staged(int devices, int stages) {
  DataParallelOptions options = on_cpus(devices);
  options.pipeline.stages = stages;
  return options;
}

std::vector<Device> two_gpus() { return {{DeviceKind::cuda, 0}, {DeviceKind::cuda, 1}}; }  // they need not exist

int cores() { return available_cores().cores; }

}  // namespace

TEST_CASE("resolved options: every default of CPU replicas") {
  DataParallelOptions options = on_cpus(3);
  options.threads_per_replica = 0;
  const ResolvedOptions of_three = resolved(options);
  CHECK(of_three.options.comm == Comm::host);
  CHECK(of_three.communicator_reason == "all replicas are in one process and share its memory");
  CHECK(of_three.options.reduce == Reduce::sharded);
  CHECK(of_three.options.threads_per_replica == std::max(1, cores() / 3));
  CHECK(of_three.options.timeout_seconds == 0.0);
  CHECK(of_three.options.grad_accum_steps == 1);
  CHECK_FALSE(of_three.options.deterministic);
  options.devices = cpus(1);
  CHECK(resolved(options).options.reduce == Reduce::master);
  CHECK(resolved(options).options.threads_per_replica == cores());
  options.devices = cpus(5000);
  CHECK(resolved(options).options.threads_per_replica == std::max(1, cores() / 5000));
}

TEST_CASE("resolved options: options that are set are not changed") {
  DataParallelOptions options = on_cpus(3);
  options.comm = Comm::host, options.reduce = Reduce::all_reduce, options.threads_per_replica = 5;
  options.timeout_seconds = 7;
  const ResolvedOptions kept = resolved(options);
  CHECK(kept.options.comm == Comm::host);
  CHECK(kept.communicator_reason == "set by the caller (--comm)");
  CHECK(kept.options.reduce == Reduce::all_reduce);
  CHECK(kept.options.threads_per_replica == 5);
  CHECK(kept.options.timeout_seconds == 7.0);
}

TEST_CASE("resolved options: the watchdog waits for 300 s on GPUs, and 0 disables it") {
  DataParallelOptions options = on_cpus(1);
  options.devices = two_gpus();
  options.comm = Comm::p2p;
  CHECK(resolved(options).options.timeout_seconds == 300.0);
  CHECK(resolved(options).communicator_reason == "set by the caller (--comm)");
  options.timeout_seconds = 0;
  CHECK(resolved(options).options.timeout_seconds == 0.0);
}

TEST_CASE("resolved options: logical shards imply a deterministic run on one thread per replica") {
  DataParallelOptions options = on_cpus(2);
  options.logical_shards = 6;
  options.threads_per_replica = 0;
  CHECK(resolved(options).options.deterministic);
  CHECK(resolved(options).options.threads_per_replica == 1);
  options.threads_per_replica = 3;
  CHECK(resolved(options).options.threads_per_replica == 3);
  CHECK(ranks_of(options) == 2);
  CHECK(shards_of(options) == 6);
}

TEST_CASE("resolved options: a pipeline's micro-batches are four per stage, accumulated ones, or logical shards") {
  const auto micro_batches = [](const DataParallelOptions& options) {
    const DataParallelOptions o = resolved(options).options;
    return std::pair(o.pipeline.micro_batches, o.grad_accum_steps);
  };
  DataParallelOptions options = staged(4, 2);
  CHECK(micro_batches(options) == std::pair(8, 8));
  CHECK(resolved(options).options.reduce == Reduce::sharded);
  CHECK(ranks_of(options) == 2);
  CHECK(shards_of(options) == 2);
  CHECK(micro_batches(staged(4, 4)) == std::pair(16, 16));
  CHECK(resolved(staged(4, 4)).options.reduce == Reduce::master);
  CHECK(ranks_of(staged(4, 4)) == 1);
  options.grad_accum_steps = 3;
  CHECK(micro_batches(options) == std::pair(3, 3));
  options.grad_accum_steps = 1;
  options.pipeline.micro_batches = 5;
  CHECK(micro_batches(options) == std::pair(5, 5));
  options.pipeline.micro_batches = 0;
  options.logical_shards = 6;
  CHECK(micro_batches(options) == std::pair(3, 1));
  CHECK(shards_of(options) == 6);
}

TEST_CASE("resolved options: the stages of a pipeline on GPUs use p2p, those on CPUs host memory") {
  DataParallelOptions options = staged(2, 2);
  CHECK(resolved(options).options.comm == Comm::host);
  CHECK(resolved(options).communicator_reason == "all replicas are in one process and share its memory");
  options.devices = two_gpus();
  CHECK(resolved(options).options.comm == Comm::p2p);
  CHECK(resolved(options).communicator_reason == "the stages of a pipeline hand tensors over as p2p does");
}

TEST_CASE("resolved options: options that exclude each other are refused with the remedy") {
  DataParallelOptions two_kinds = on_cpus(2);
  two_kinds.devices.back().kind = DeviceKind::reference;
  CHECK(refusal_of(two_kinds) == "devices of different kinds, cpu and reference, cannot train together");
  DataParallelOptions reference = on_reference();
  CHECK(refusal_of(reference).empty());
  reference.amp = Amp::float16;
  CHECK(refusal_of(reference).empty());
  reference.reduce_dtype = DType::bf16;
  CHECK(refusal_of(reference) == "--reduce-dtype bfloat16: reference devices reduce in float64; remove the flag");
  DataParallelOptions nccl = on_cpus(2);
  nccl.devices = two_gpus(), nccl.comm = Comm::nccl;
  check_all(nccl,
            {{[](auto& o) { o.logical_shards = 2; },
              "--logical-shards requires one order of summation, which nccl does not guarantee; use --comm p2p"}});
  const std::string traced = "trace_first and trace_steps must not be negative";
  const std::string weights = "weights are whole numbers from 1 to 1000000";
  check_all(on_cpus(2),
            {{[](auto& o) { o.comm = Comm::mpi; }, "--comm mpi requires --engine ddp; remove it, or use host or p2p"},
             {[](auto& o) { o.amp = Amp::float16; }, "--amp-dtype float16 requires GPUs; use bfloat16"},
             {[](auto& o) { o.reduce_dtype = DType::bf16; }, ""},
             {[](auto& o) { o.trace_first = -1; }, traced},
             {[](auto& o) { o.trace_steps = -1; }, traced},
             {[](auto& o) {
                o.split_weights = {3, 1, 1};
              },
              "--split 3:1:1 has 3 weights for 2 replicas; give one weight per replica, or --split balanced"},
             {[](auto& o) {
                o.split_weights = {3, 0};
              },
              "--split 3:0: " + weights},
             {[](auto& o) {
                o.split_weights = {1'000'001, 1};
              },
              "--split 1000001:1: " + weights},
             {[](auto& o) {
                o.split_weights = {1'000'000, 1};
              },
              ""},
             {[](auto& o) {
                o.split_weights = {3, 1}, o.split = Split::chunk;
              },
              "--split 3:1 excludes Split::chunk"},
             {[](auto& o) {
                o.split_weights = {3, 1}, o.logical_shards = 2;
              },
              "--split 3:1 excludes --logical-shards, whose shards have equal sizes"},
             {[](auto& o) { o.logical_shards = 3; },
              "--logical-shards 3 is not a multiple of the 2 replicas; use a multiple of 2"},
             {[](auto& o) { o.logical_shards = 2, o.loss = LossAt::gathered; },
              "--loss gathered excludes --logical-shards: each shard computes its own loss; use --loss local"}});
}

TEST_CASE("resolved options: a loss scale out of range is rejected") {
  const std::string text =
      "a loss scale begins at a positive number, grows by a factor of at least 1 after at least one step, and backs "
      "off "
      "by one below 1";
  constexpr float kInfinite = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<Row> rows;
  for (const float initial : {0.0f, -1.0f, kInfinite, kNan, std::numeric_limits<float>::denorm_min()})
    rows.push_back({[=](auto& o) { o.loss_scale.initial = initial; }, text});
  for (const float growth : {0.99f, -2.0f, kInfinite, kNan})
    rows.push_back({[=](auto& o) { o.loss_scale.growth = growth; }, text});
  for (const float backoff : {0.0f, -0.5f, 1.0f, kNan})
    rows.push_back({[=](auto& o) { o.loss_scale.backoff = backoff; }, text});
  for (const int interval : {0, -1}) rows.push_back({[=](auto& o) { o.loss_scale.growth_interval = interval; }, text});
  rows.push_back({[](auto& o) { o.loss_scale = {1e-30f, 1, 0.99f, 1}; }, ""});
  check_all(on_cpus(1), rows);
}

TEST_CASE("resolved options: options that exclude a pipeline are refused with the remedy") {
  const std::string alone =
      "micro-batches, cuts and recomputation require at least two stages; use --pipeline-stages 2 or more";
  check_all(on_cpus(2), {{[](auto& o) { o.pipeline.micro_batches = 2; }, alone},
                         {[](auto& o) { o.pipeline.cuts = {"fc1"}; }, alone},
                         {[](auto& o) { o.pipeline.measured = true; }, alone},
                         {[](auto& o) { o.pipeline.recompute = Recompute::stage; }, alone},
                         {[](auto& o) { o.pipeline.schedule = PipelineSchedule::gpipe; }, ""}});
  const std::string shards =
      "with --logical-shards 4 the micro-batches of a replica are its 2 shards; remove --micro-batches and "
      "--grad-accum-steps";
  check_all(
      staged(4, 2),
      {{[](auto& o) { o.process_group = ProcessGroup::join({}); },
        "--pipeline-stages 2 requires one process (--engine dp)"},
       {[](auto& o) { o.devices = cpus(3); },
        "--pipeline-stages 2 requires that number of devices for each replica, but there are 3; use a multiple of 2"},
       {[](auto& o) { o.comm = Comm::nccl; },
        "--pipeline-stages 2 excludes --comm nccl: stages hand tensors over by p2p; use --comm p2p"},
       {[](auto& o) { o.loss = LossAt::gathered; },
        "--loss gathered excludes --pipeline-stages 2: the last stage computes the loss; use --loss local"},
       {[](auto& o) { o.split = Split::chunk; }, "--split chunk excludes --pipeline-stages 2; use --split balanced"},
       {[](auto& o) {
          o.split_weights = {1, 2};
        },
        "--split 1:2 excludes --pipeline-stages 2; use --split balanced"},
       {[](auto& o) {
          o.pipeline.cuts = {"a", "b"};
        },
        "--pipeline-stages 2 requires 1 cuts, not 2; name the first block of each stage but the first"},
       {[](auto& o) { o.pipeline.cuts = {"a"}; }, ""},
       {[](auto& o) { o.pipeline.measured = o.deterministic = true; },
        "--deterministic excludes --pipeline-split measured, which depends on timing; use auto"},
       {[](auto& o) { o.pipeline.measured = o.deterministic = true, o.pipeline.cuts = {"a"}; }, ""},
       {[](auto& o) { o.pipeline.measured = true; }, ""},
       {[](auto& o) { o.logical_shards = 4, o.batch_norm = BatchNormMode::sync; },
        "--bn sync excludes --logical-shards with --pipeline-stages 2: its statistics need all micro-batches at once; "
        "use --bn pooled or master"},
       {[](auto& o) { o.logical_shards = 4, o.batch_norm = BatchNormMode::pooled; }, ""},
       {[](auto& o) { o.batch_norm = BatchNormMode::sync; }, ""},
       {[](auto& o) { o.pipeline.recompute = Recompute::stage, o.pipeline.schedule = PipelineSchedule::zero_bubble; },
        "--recompute excludes --schedule zb-h1, which saves activations for its delayed weight gradients; use 1f1b"},
       {[](auto& o) { o.pipeline.schedule = PipelineSchedule::zero_bubble; }, ""},
       {[](auto& o) { o.pipeline.recompute = Recompute::except_last; }, ""},
       {[](auto& o) { o.logical_shards = 4, o.pipeline.micro_batches = 4; }, shards},
       {[](auto& o) { o.logical_shards = 4, o.grad_accum_steps = 2; }, shards},
       {[](auto& o) { o.logical_shards = 4, o.pipeline.micro_batches = 2; }, ""},
       {[](auto& o) { o.grad_accum_steps = 3, o.pipeline.micro_batches = 4; },
        "--grad-accum-steps 3 and --micro-batches 4 differ; with --pipeline-stages 2 use --micro-batches alone"},
       {[](auto& o) { o.grad_accum_steps = 3, o.pipeline.micro_batches = 3; }, ""}});
}

TEST_CASE("resolved options: a rank of a process group reduces with allreduce, and other reductions are rejected") {
  DataParallelOptions good = on_cpus(1);
  good.process_group = ProcessGroup::join({});
  good.threads_per_replica = 0;
  CHECK(resolved(good).options.reduce == Reduce::all_reduce);
  CHECK(resolved(good).options.threads_per_replica == cores());
  check_all(
      good,
      {{[](auto& o) { o.reduce = Reduce::all_reduce; }, ""},
       {[](auto& o) { o.devices = cpus(2); }, "a rank of a process group has one device, not 2; start more ranks"},
       {[](auto& o) { o.reduce = Reduce::master; },
        "--reduce master requires one process (--engine dp): ranks use allreduce; remove it"},
       {[](auto& o) { o.loss = LossAt::gathered; },
        "--loss gathered requires one process (--engine dp): each rank computes its own loss; use --loss local"},
       {[](auto& o) { o.logical_shards = 1; }, "--logical-shards requires one process (--engine dp)"},
       {[](auto& o) { o.split_weights = {1}; },
        "--split with weights requires one process (--engine dp): ranks have shards of equal size"}});
}

TEST_CASE("resolved options: names, activation types and the order of parameters follow from the options") {
  CHECK(communicator_name(Comm::automatic) == "auto");
  CHECK(communicator_name(Comm::host) == "host");
  CHECK(communicator_name(Comm::p2p) == "p2p");
  CHECK(communicator_name(Comm::nccl) == "nccl");
  CHECK(communicator_name(Comm::mpi) == "mpi");
  DataParallelOptions options = on_cpus(3);
  CHECK(activations_of(options) == std::nullopt);
  options.amp = Amp::bfloat16;
  CHECK(activations_of(options) == DType::bf16);
  options.amp = Amp::float16;
  CHECK(activations_of(options) == DType::f16);
  // Weights are stored apart from vectors if they are gathered in 16 bits.
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
    for (const Amp amp : {Amp::off, Amp::bfloat16, Amp::float16})
      for (const int devices : {1, 2}) {
        options.reduce = reduce, options.amp = amp, options.devices = cpus(devices);
        CHECK(vectors_first(options) == (reduce == Reduce::sharded && amp != Amp::off && devices == 2));
      }
  options.devices = cpus(3);
  for (const Comm comm : {Comm::host, Comm::p2p, Comm::nccl})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
      options.comm = comm, options.reduce = reduce;
      CHECK(bucket_granularity(options) ==
            (comm == Comm::nccl && reduce == Reduce::sharded ? 3 * kernels::kSliceBlock : 1));
    }
}
