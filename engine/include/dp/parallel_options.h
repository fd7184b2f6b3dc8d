// Options of DataParallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/device.h"
#include "dp/loss.h"
#include "dp/loss_functions.h"
#include "dp/loss_scale.h"
#include "dp/optimizer.h"
#include "dp/tensor.h"

namespace dp {

class ProcessGroup;

// Where gradients are reduced and weights are updated. automatic: sharded for several replicas.
enum class Reduce {
  automatic,
  master,      // reduce to the master, update there, broadcast the weights
  all_reduce,  // reduce to every replica, update everywhere
  sharded,     // reduce-scatter, update one slice per replica, all-gather
};

// The communicator between replicas. automatic: the fastest one that is safe on these devices.
enum class Comm {
  automatic,
  host,  // host memory; CPU replicas of one or several processes on one host
  p2p,   // peer copies and our own kernels between the GPUs of one process
  nccl,  // NCCL between distinct GPUs of one or several processes; NCCL chooses the order of summation
  mpi,   // MPI; CPU replicas in several processes
};

// Where the loss of a train_step is computed: on each replica, or on the master from gathered outputs.
enum class LossAt { local, gathered };

// Shard sizes of a global batch. balanced: they differ by at most one sample. chunk: as torch.chunk cuts.
enum class Split { balanced, chunk };

// What a training step does if its gradient or loss contains NaN or infinity.
enum class OnNonfinite { abort, skip };

// Whether training steps run as CUDA graphs (docs/internals/cuda_graphs.md).
enum class Graphs {
  automatic,  // on GPUs, except with nccl between several GPUs of one process (NVIDIA warns of deadlocks); a step that
              // cannot be captured runs eagerly
  always,     // a step that cannot be captured is an error
  never,
};

// Mixed precision on GPUs: activations, their gradients and the weights that layers read have a 16-bit type. Master
// weights, optimizer state, weight gradients, statistics and all arithmetic stay float32. float16 scales the loss.
enum class Amp { off, bfloat16, float16 };

// Batch normalisation over several replicas. The master stores the running statistics and broadcasts them before an
// evaluation.
enum class BatchNormMode {
  master,  // each shard is normalised with its own statistics; the running ones follow the first (nn.DataParallel)
  pooled,  // each shard is normalised with its own statistics; the running ones follow the global batch
  sync,    // statistics of the whole global batch, forward and backward: the result of a single device
};

// Whether evaluate() and predict() fold batch normalisations into the convolutions before them, which saves a pass over
// each activation. Results differ by rounding. With mixed precision the folded weights are rounded to 16 bits
// as well.
enum class FoldNorms {
  automatic,  // unless deterministic
  always,
  never,
};

// The order of a pipeline's work. All schedules compute the same bits.
enum class PipelineSchedule {
  one_at_a_time,  // a micro-batch passes through all stages before the next one starts; no two stages work at once
  gpipe,          // all forward work, then all backward work
  one_f_one_b,    // forward and backward work alternate: as fast as gpipe, with fewer activations
  zero_bubble,    // as one_f_one_b; weight gradients fill the idle time at the end of a step (ZB-H1)
};

// Selects the stages that save memory by computing their activations twice. Such a stage saves the inputs of all
// micro-batches in progress, but the activations of only one. It computes the activations again before backward.
enum class Recompute {
  none,
  stage,        // all stages
  except_last,  // all but the last one, which with one_f_one_b has only one micro-batch in progress
};

// Options for a model that is too large for one device. Each replica uses several devices, and each of them holds some
// layers: a stage. A replica's share of the batch is split into micro-batches, and the stages work on different
// micro-batches at the same time. On CPUs, training gives the same bits as with grad_accum_steps micro-batches on one
// device.
struct PipelineOptions {
  int stages = 1;         // devices per replica; they are consecutive in DataParallelOptions::devices
  int micro_batches = 0;  // per step and replica; 0: grad_accum_steps if that is set, or else four per stage
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  // The first block or layer of each stage, without the first stage: {"layer3.0"} for two stages. Empty: the engine
  // splits the model so that the times of the stages are as equal as possible.
  std::vector<std::string> cuts{};
  bool measured = false;  // without `cuts`: times are measured on the first device, with 8 rows, not modelled
  Recompute recompute = Recompute::none;  // not with zero_bubble
};

struct DataParallelOptions {
  std::vector<Device> devices{};  // one replica each, without a pipeline; empty: every GPU, or else two CPU replicas
  // The multi-process engine: this process is one rank with one device (default: the GPU of its local rank, or else the
  // CPU). Gradients are reduced with all_reduce. Every rank must call train_step, evaluate, take_stats and all
  // functions that read or set state equally often and in the same order.
  std::shared_ptr<ProcessGroup> process_group{};
  Reduce reduce = Reduce::automatic;
  // f32 or bf16. With bf16 each replica rounds its gradients to bfloat16 before the reduction, and the result is
  // rounded again; norm, clipping and update use float32. A single replica rounds nothing. Not available with mpi and
  // on reference devices.
  DType reduce_dtype = DType::f32;
  Comm comm = Comm::automatic;
  LossAt loss = LossAt::local;
  Split split = Split::balanced;
  // Relative shares of a batch, one positive number per device: {3, 1} gives device 0 three quarters. Empty: equal
  // shares. Requires Split::balanced, one process and no logical shards. measure_split() returns such weights.
  std::vector<int> split_weights{};
  std::size_t bucket_bytes = 0;  // size of a gradient bucket; 0: chosen from the model
  int threads_per_replica = 0;   // for CPU replicas; 0: cores / replicas
  bool pin_threads = true;       // one core per thread, even if the process inherited a narrower mask
  // Non-zero: a signal (its number) or the program asked for the end. A call that then makes no progress for 15 s ends
  // as after timeout_seconds, also if that is 0; a blocked process exits with 128 + the number. A Trainer sets it.
  const std::atomic<int>* stop = nullptr;
  std::uint64_t seed = 42;  // for initial weights and dropout
  bool deterministic = false;
  // Forbids Winograd's algorithm for forward convolutions and their data gradients; weight gradients may always use it.
  // Over the depth of ResNet18 the gradients then deviate from the exact ones by up to 5e-6 of their norm, instead of
  // 2e-5 (docs/decisions/0016).
  bool exact_convolutions = false;
  // On GPUs: float32 convolutions and linear layers may round their factors to TF32 (10 mantissa bits instead of 23) if
  // a library is faster with it. Requires autotune.
  bool tf32 = false;
  // On GPUs: times the algorithms of each layer once and uses the fastest; results are cached in $XDG_CACHE_HOME/dp.
  // Ignored with deterministic and on CPUs.
  bool autotune = true;
  // A kind of step is captured when it occurs for the second time, and launched as a graph from then on, with the same
  // results.
  Graphs graphs = Graphs::automatic;
  // Weights are bitwise equal on every number of replicas that divides this number: the batch is cut into this many
  // shards, each computed separately, and reductions use one fixed order over all shards. 0: one shard per replica.
  // Requires LossAt::local. With more shards than replicas, forward(), backward() and step() are not available.
  // threads_per_replica defaults to 1 and must be the same for every number of replicas.
  int logical_shards = 0;
  // Requires one process, LossAt::local and Split::balanced; on GPUs also p2p. forward(), backward(),
  // step() and predict() are then not available.
  PipelineOptions pipeline{};
  BatchNormMode batch_norm = BatchNormMode::master;
  FoldNorms fold_norms = FoldNorms::automatic;
  std::vector<ParameterGroup> parameter_groups{};  // parameters with a rate or decay of their own, or frozen
  Amp amp = Amp::off;
  LossScaleOptions loss_scale{};  // with Amp::float16
  bool dropout = true;
  float label_smoothing = 0;  // in [0, 1), of the training loss; evaluate() has none
  // The loss of outputs that have targets of their own, e.g. MseLoss{} or BceWithLogitsLoss{}; batches then have
  // targets instead of labels. Empty: cross-entropy of class numbers.
  std::optional<OutputLoss> output_loss{};
  // Training batches have targets, a number for each class, and their loss is SoftCrossEntropyLoss; batches to evaluate
  // have labels. A Trainer sets it for mixed images and for weights of classes or samples. Not with label_smoothing,
  // which the targets contain.
  bool soft_targets = false;
  // With output_loss or soft_targets: the rows of a training batch's targets have one number more, the factor of the
  // sample's loss. Evaluations have none. The loss is the mean of the products, as with reduction='none' in PyTorch.
  bool sample_weights = false;
  // A loss of the program's own: the outputs are gathered on the master and copied to the host, and its gradient is
  // scattered. Requires one process, no pipeline, no micro-batches, one shard per replica, and not float16.
  std::optional<OwnLoss> own_loss{};
  int grad_accum_steps = 1;                // micro-batches per optimizer step
  std::optional<double> clip_grad_norm{};  // maximum L2 norm of the whole gradient
  OnNonfinite on_nonfinite = OnNonfinite::abort;
  // Computes a moving average of weights and running statistics: average = d * average + (1 - d) * value, after each
  // step. In update t = 1, 2, ... of the average, d = min(ema_decay, (1 + t) / (10 + t)).
  std::optional<double> ema_decay{};
  bool check_replicas = false;  // compares the replicas bit by bit after every step
  // Abort after this many seconds without progress of any replica: the call ends with Error(timeout), which names the
  // last phase of each replica; 0: never. Empty: 300 on GPUs, 0 elsewhere. If a thread is then still stuck inside the
  // device or the system, the error is printed and the process exits with status 6, within twice the time.
  std::optional<double> timeout_seconds{};
  // Training steps to time for write_trace(): trace_steps steps, beginning with step trace_first of this object; 0:
  // none.
  std::int64_t trace_first = 0, trace_steps = 0;
};

// Shard sizes of a global batch, in device order; replicas beyond the returned ones stay idle. Error(usage) if `batch`
// or `replicas` is below 1.
std::vector<std::int64_t> split_batch(std::int64_t batch, int replicas, Split split);
// Shard sizes for split_weights, one per weight. Each size is within one sample of the exact share, and the first is at
// least 1. Equal weights give the sizes of Split::balanced. Error(usage) if `batch` or a weight is below 1, or if
// `weights` is empty.
std::vector<std::int64_t> split_batch(std::int64_t batch, const std::vector<int>& weights);

}  // namespace dp
