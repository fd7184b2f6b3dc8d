// Data-parallel training of one model on several devices of this host, from one process.
//
// devices[0] holds the master replica. A step scatters the minibatch, runs forward and backward on every
// replica in parallel, sums the gradients, updates and brings the weights to every replica, bucket by bucket
// while backward still runs. Gradients are the sum over replicas of the gradient of one loss over the global batch,
// so that uneven shards are exact.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dp/device.h"
#include "dp/loader.h"
#include "dp/loss_scale.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "dp/tensor.h"

namespace dp {

class World;

enum class Reduce { automatic, master, all_reduce, sharded };  // where gradients are summed and weights updated
// What carries data between replicas: the host's memory (CPU replicas, of one process or of several), kernels and copies of our
// own between the GPUs of a process, NCCL between distinct GPUs, of one process or of several, whose sums have an order of
// their own, or, between processes, sockets or MPI (CPU replicas).
enum class Comm { automatic, host, p2p, nccl, tcp, mpi };
enum class LossAt { local, gathered };  // on each replica, or on the master from gathered outputs
enum class Split { balanced, chunk };   // shard sizes: differ by at most one, or torch.chunk
enum class OnNonfinite { abort, skip };
// Whether training steps run as CUDA graphs. automatic: on GPUs, except with nccl between several GPUs of one process, where NVIDIA warns
// of deadlocks; a step that cannot be recorded runs eagerly. always: what prevents graphs is an error. (docs/internals/cuda_graphs.md)
enum class Graphs { automatic, always, never };
// Mixed precision, on GPUs: activations, their gradients, and the weights that layers read are of a 16-bit type; weights, momenta,
// gradients of weights, statistics and all arithmetic stay float32.
enum class Amp { off, bfloat16, float16 };  // float16: with a scaled loss
// Batch normalisation over several replicas. Running statistics live on the master and are brought to every replica before
// an evaluation.
enum class BatchNormMode {
  master,  // each shard by its own statistics; the running ones follow the first shard (nn.DataParallel)
  pooled,  // each shard by its own; the running ones follow those of the whole global batch
  sync,    // each by those of the whole global batch, forward and backward: as one device would
};

struct DataParallelOptions {
  std::vector<Device> devices{};  // empty: every GPU, or else two CPU replicas
  // The multi-process engine: this process is one rank of a world, with one device (by default the GPU of its number among the
  // ranks of its host, or else the CPU). Gradients are summed by all_reduce; every rank calls train_step, evaluate, take_stats, and what
  // reads or sets state, the same number of times in the same order.
  std::shared_ptr<World> world{};
  Reduce reduce = Reduce::automatic;
  // f32, or bf16: then each replica's gradients are rounded to bfloat16 before they travel, and their sum once more; it is float32 again
  // before norm, clipping and update. Where nothing is summed, nothing is rounded. Not with mpi, nor on reference devices.
  DType reduce_dtype = DType::f32;
  Comm comm = Comm::automatic;
  LossAt loss = LossAt::local;
  Split split = Split::balanced;
  std::size_t bucket_bytes = 0;  // 0: chosen from the model
  int threads_per_replica = 0;   // CPU replicas; 0: cores / replicas
  bool pin_threads = true;       // one core a worker thread, whatever mask the process inherited
  std::uint64_t seed = 42;       // initial weights and dropout
  bool deterministic = false;
  // Convolutions and their data gradients may use Winograd's algorithm, as their weight gradients do anyway. Over the depth of
  // ResNet18 the gradients then lie about 2e-5 of their norm from the exact ones instead of 5e-6 (docs/decisions/0016).
  bool fast_convolutions = false;
  // On GPUs: float32 convolutions and linear layers may round what they multiply to TF32, 10 bits instead of 23, where a library
  // does so faster. Only with autotune.
  bool tf32 = false;
  // On GPUs: of several ways to compute a layer each is tried once, and the fastest taken; choices are kept in $XDG_CACHE_HOME/dp.
  // Not with deterministic, nor on CPUs.
  bool autotune = true;
  // A training step is recorded when its kind occurs for the second time, and launched as a whole from then on. Results are the same.
  Graphs graphs = Graphs::automatic;
  // Bit-identical weights for every number of replicas that divides it: the batch is split into so many shards, each computed
  // by its own calls, and everything is summed over them in one order. 0: as many shards as replicas. Needs LossAt::local; the
  // seven steps one by one are not offered with it. threads_per_replica is then 1 unless given: it must be the same at every N.
  int logical_shards = 0;
  BatchNormMode batch_norm = BatchNormMode::master;
  Amp amp = Amp::off;
  LossScaleOptions loss_scale{};  // with float16
  bool dropout = true;
  float label_smoothing = 0;
  int grad_accum_steps = 1;                // micro-batches per optimizer step
  std::optional<double> clip_grad_norm{};  // L2 norm of the whole gradient
  OnNonfinite on_nonfinite = OnNonfinite::abort;
  // A moving average of weights and running statistics: average = decay * average + (1 - decay) * value after every step.
  std::optional<double> ema_decay{};
  bool check_replicas = false;  // after every step, verify that the replicas are bit-identical
  // A call in which no replica does anything for so long is ended by Error(timeout), which says what each did last; 0: never.
  // Empty: 300 on GPUs, 0 elsewhere. A thread that does not come back even then, because it stands inside the device or the system, can not
  // be ended: the error is printed and the process exits with status 6, within twice the time.
  std::optional<double> timeout_seconds{};
  // So many training steps are timed for write_trace(), from number trace_first of this object's on; 0: none.
  std::int64_t trace_first = 0, trace_steps = 0;
};

// Sums over the samples seen since the last take_stats(), in training over those whose loss is finite. A mean is a sum over samples.
struct Stats {
  double loss_sum = 0;
  std::int64_t samples = 0;
  std::int64_t top1 = 0;  // samples whose label has the largest logit
  std::int64_t top5 = 0;  // ... is among the five largest
  std::int64_t skipped =
      0;                 // optimizer steps skipped because of NaN or Inf, with float16 overflows of the scaled gradient
  double grad_norm = 0;  // of the last step, before clipping; only when clipping, skipping or scaling is on
  std::optional<float> loss_scale{};  // the next step's; with float16

  double loss() const { return samples ? loss_sum / static_cast<double>(samples) : 0; }
  double accuracy1() const { return samples ? 100.0 * static_cast<double>(top1) / static_cast<double>(samples) : 0; }
  double accuracy5() const { return samples ? 100.0 * static_cast<double>(top5) / static_cast<double>(samples) : 0; }
};

// Seconds that a replica spent on each part of its training steps since the last take_phase_times(): working, whatever it ran
// beside, and `waiting`: the rest of the steps' time, for other replicas or for orders.
struct PhaseTimes {
  double scatter = 0, forward = 0, backward = 0, reduce = 0, update = 0, broadcast = 0, waiting = 0;
  double graph =
      0;  // of steps that run as a graph: everything from forward to broadcast, of all replicas where they share one
};

// What one piece of a training step takes, and the least that it could.
struct LayerTime {
  std::string
      name;  // of the plan's step, as --print-plan has it; "(update)": work of that phase that is none of a layer
  std::string implementation;  // of a layer's op
  double seconds = 0;          // in a step, the median of those traced
  double floor_seconds = 0;  // arithmetic or memory traffic at the device's rates, whichever takes longer; 0: not known
};

// What was chosen, and why: {"nccl", "p2p would copy between cuda:0 and cuda:1 through the host (no peer access)"}.
struct Choice {
  std::string what, reason;
};

// Bytes on one device, by what they are for.
struct MemoryUse {
  std::size_t weights = 0, gradients = 0;  // each with what lies beside it in 16 bits
  std::size_t momenta = 0;                 // this replica's part of the optimizer's state
  std::size_t statistics = 0;              // of batch normalisation
  std::size_t average = 0;                 // the moving average of the weights, on the master
  std::size_t activations = 0;             // and their gradients, placed by the plan of the largest shard
  std::size_t workspace = 0;               // of the ops of that plan
  std::size_t other = 0;                   // gathered logits, copies of inputs, norms

  std::size_t total() const {
    return weights + gradients + momenta + statistics + average + activations + workspace + other;
  }
};

// Shard sizes of a global batch, in device order; replicas beyond the returned ones stay idle. Error(usage) for batch 0.
std::vector<std::int64_t> split_batch(std::int64_t batch, int replicas, Split split);

class DataParallel {
 public:
  // Builds one replica per device with equal weights, initialised as PyTorch does from options.seed.
  // Error(usage) for impossible options, Error(device) when a device can not be used.
  DataParallel(const Model& model, const DataParallelOptions& options);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // --- the seven steps one by one, as nn.DataParallel has them -----------------------------------------------
  // Training-mode forward of (B, ...) float32 host images, with new dropout masks each time; logits (B, classes), gathered
  // on the master, valid until the next call.
  const Tensor& forward(const Tensor& images);
  // d(loss)/d(logits), shape of forward()'s result. Leaves the summed gradient on the master (everywhere under all_reduce). These two:
  // Error(usage) with float16, whose loss is scaled on the devices.
  void backward(const Tensor& logits_grad);
  void step(const Sgd& sgd);                    // updates and brings the weights to every replica
  const Tensor& predict(const Tensor& images);  // evaluation-mode forward

  // --- the fused step ----------------------------------------------------------------------------------------
  // One optimizer step on a global batch: the mean cross-entropy over it, its gradient, update, broadcast. In a world `batch` is this
  // rank's part of it.
  // Error(nonfinite) under OnNonfinite::abort names step and device. After any exception the object can only
  // be destroyed.
  void train_step(const Batch& batch, const Sgd& sgd);
  void evaluate(const Batch& batch);  // adds loss and accuracies in evaluation mode to the statistics
  Stats take_stats();                 // waits for the devices, returns the sums (in a world of all ranks), resets them
  std::vector<PhaseTimes> take_phase_times();
  // Writes the timeline of the traced steps, of all replicas, to a file that Perfetto and Chrome open, and returns how many
  // steps there are. In a world all ranks call it, and rank 0 writes. Error(usage) without trace_steps, Error(io).
  std::int64_t write_trace(const std::string& file);
  // Of the traced steps, on this process's first replica, in a step's order. Waits for the devices. Error(usage) without trace_steps.
  std::vector<LayerTime> layer_times();

  // Places the memory of these global batch sizes ahead, so that no later step allocates.
  void prepare(const std::vector<std::int64_t>& train_batches, const std::vector<std::int64_t>& eval_batches = {},
               const KeptImages& train_images = {}, const KeptImages& eval_images = {});

  // --- state -------------------------------------------------------------------------------------------------
  // Tensors are host copies in PyTorch's layout and order; float32 (float64 on reference devices). weights() is the whole
  // state dict, with running statistics and, as int64, their counters.
  std::vector<std::pair<std::string, Tensor>> weights() const;
  std::vector<std::pair<std::string, Tensor>> gradients() const;  // the sum, as of the last backward
  std::vector<std::pair<std::string, Tensor>> momenta() const;
  // Error(data) naming the tensor for an unknown name or another shape; the tensors not named keep their values. New weights
  // start the moving average anew. In a world all ranks call these; what rank 0 gives counts.
  void set_weights(const std::vector<std::pair<std::string, Tensor>>& tensors);
  void set_momenta(const std::vector<std::pair<std::string, Tensor>>& tensors);
  // Exchanges the weights in use with their moving average, for an evaluation; call it again to go on training.
  // These three: Error(usage) without ema_decay.
  void swap_average();
  std::vector<std::pair<std::string, Tensor>> average_weights();
  void set_average_weights(const std::vector<std::pair<std::string, Tensor>>& tensors);
  std::int64_t step_count() const;  // training steps done, each forward() begins one; part of dropout's key
  void set_step_count(std::int64_t steps);
  bool replicas_identical() const;              // compares the replicas' weights bit by bit
  std::optional<LossScale> loss_scale() const;  // of the next step; nothing where no loss is scaled
  void set_loss_scale(const LossScale& scale);  // Error(usage) where none is, or for no positive number

  // --- what was chosen ---------------------------------------------------------------------------------------
  const Model& model() const;
  const DataParallelOptions& options()
      const;         // with every automatic choice resolved, except graphs: see graphs_choice()
  int size() const;  // replicas, in a world of all ranks
  std::vector<std::string> device_names() const;  // of every replica; with the host's name where there are several
  std::string communicator() const;    // what carries data between the replicas, and what it cannot do directly
  Choice communicator_choice() const;  // "host", "p2p", "nccl", "tcp", "mpi"
  Choice graphs_choice() const;  // "none", "one per replica", "one of all replicas"; changes when a recording fails
  MemoryUse memory_use(int replica) const;  // held on that device; in a world as of the last prepare()
  std::string describe_steps() const;       // for a person, a line: whether training steps run as graphs, or why not
  std::string describe_plan(std::int64_t global_batch) const;  // for a person: steps, buffers, reorders, buckets

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What memory_use() will say of each replica after prepare(train_batches, eval_batches), without training anything or
// allocating it; on GPUs but for what brings the inputs (three times a batch, or the images kept there), and for the workspace of ways and
// the sizes of buckets that only the tuner finds. Errors as for making the DataParallel.
std::vector<MemoryUse> estimate_memory(const Model& model, const DataParallelOptions& options,
                                       const std::vector<std::int64_t>& train_batches,
                                       const std::vector<std::int64_t>& eval_batches = {});
std::size_t free_memory(const Device& device);  // bytes that could be had there now; 0: unknown
// The largest global batch (trained and evaluated) for which no replica needs more than `bytes`; 0 when none fits.
std::int64_t largest_batch(const Model& model, const DataParallelOptions& options, std::size_t bytes);

struct Loss {
  double value = 0;  // the mean over the batch
  Tensor grad;       // d(value)/d(logits), on the logits' device
};
// Mean softmax cross-entropy of logits (B, classes) with int32 labels (B), as torch.nn.functional.cross_entropy.
Loss cross_entropy(const Tensor& logits, const Tensor& labels, float label_smoothing = 0);

}  // namespace dp
