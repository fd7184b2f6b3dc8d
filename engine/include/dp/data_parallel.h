// Data-parallel training of one model on several devices of this host, from one process.
//
// devices[0] holds the master replica. A step scatters the minibatch, runs forward and backward on every replica in
// parallel, reduces the gradients, updates the weights and broadcasts them, bucket by bucket while backward still runs.
// The loss is one mean over the global batch, so shards of different sizes give exact gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dp/loader.h"
#include "dp/loss.h"
#include "dp/loss_scale.h"
#include "dp/memory.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "dp/parallel_options.h"
#include "dp/statistics.h"
#include "dp/tensor.h"

namespace dp {

struct Checkpoint;  // dp/checkpoint.h

// What a model computed for evaluated samples; row r belongs to samples[r].
struct EvaluatedLogits {
  std::vector<std::int64_t> samples;  // indices in the data set
  std::vector<std::int32_t> labels;   // class numbers; with DataParallelOptions::output_loss none
  Tensor logits;     // (rows, classes) in host memory, float32 (float64 on reference devices); empty without rows
  Tensor targets{};  // with DataParallelOptions::output_loss: (rows, outputs), float32
};

class DataParallel {
 public:
  // Makes one replica per device, all with the same weights, initialised as PyTorch does, from options.seed.
  // Error(usage) if the options cannot be combined, Error(device) if a device cannot be used.
  DataParallel(const Model& model, const DataParallelOptions& options);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // --- the seven steps one by one, as nn.DataParallel has them -----------------------------------------------
  // Training-mode forward of float32 host images (B, C, H, W), with new dropout masks on each call. Returns the logits
  // (B, classes), gathered on the master and valid until the next call.
  const Tensor& forward(const Tensor& images);
  // Takes d(loss)/d(logits), shaped as forward()'s result. Reduces the gradient by options().reduce: a slice on each
  // replica (sharded), the whole on the master (master) or on every replica (all_reduce).
  // forward() and backward() throw Error(usage) with float16: its loss is scaled on the devices.
  void backward(const Tensor& logits_grad);
  void step(const Optimizer& optimizer);        // updates the weights on every replica
  const Tensor& predict(const Tensor& images);  // evaluation-mode forward

  // --- the fused step ----------------------------------------------------------------------------------------
  // One optimizer step on a global batch: mean loss, its gradient, update, broadcast. With several ranks,
  // `batch` is this rank's part of the global batch. With OnNonfinite::abort, Error(nonfinite) names step and device.
  // The state of an optimizer begins at zero; a step with another optimizer discards it. Error(usage) for options out
  // of range. After any other exception, destroy the object.
  void train_step(const Batch& batch, const Optimizer& optimizer);
  void evaluate(const Batch& batch);  // adds the loss and accuracies of an evaluation-mode forward to the statistics
  // From now on evaluate() also stores the logits on the devices: of at most `batches` batches, each of at most `rows`
  // rows of this process. Allocates the memory for them. Returns false if a device lacks it: then nothing
  // is stored. With own_loss they are stored on the host.
  bool store_logits(std::int64_t batches, std::int64_t rows);
  // Waits for the devices. Returns what this process has stored since the last call, in no particular order.
  EvaluatedLogits take_logits();
  Stats take_stats();  // waits for the devices, returns the totals (of all ranks) and resets them
  std::vector<PhaseTimes> take_phase_times();
  // Writes the timeline of the traced steps of all replicas to a file for Perfetto or Chrome; returns the number of
  // steps. Every rank calls it, rank 0 writes. Error(usage) without trace_steps, Error(io).
  std::int64_t write_trace(const std::string& file);
  // Times of the traced steps on this process's first replica, in the order of a step. Waits for the devices.
  // Error(usage) without trace_steps.
  std::vector<LayerTime> layer_times();

  // Lower bound of the time of a training step on a global batch of this size, in seconds. It is the time that the
  // layers' arithmetic or memory traffic takes at the device's peak rates, on the slowest replica of this process.
  // Returns 0 if the rates are unknown, or before memory for such a batch was prepared. Measures the rates of CPUs,
  // which takes about 0.1 s.
  double step_floor(std::int64_t batch) const;

  // Allocates all memory for these global batch sizes and this optimizer, so that no later step allocates. Without an
  // optimizer: for training batches, state of SGD with momentum, unless there is state of any optimizer.
  void prepare(const std::vector<std::int64_t>& train_batches, const std::vector<std::int64_t>& eval_batches = {},
               const DeviceImages& train_images = {}, const DeviceImages& eval_images = {},
               const std::optional<Optimizer>& optimizer = {});

  // --- state -------------------------------------------------------------------------------------------------
  // Host copies in PyTorch's layout and order; float32 (float64 on reference devices). weights() is the whole state
  // dict, with running statistics and their int64 counters.
  std::vector<std::pair<std::string, Tensor>> weights() const;
  std::vector<std::pair<std::string, Tensor>> gradients() const;  // reduced, of the last backward
  OptimizerState optimizer_state() const;
  // What a checkpoint needs of these, copied while training goes on: weights, optimizer, average, average_updates. Call
  // it between steps, on every rank. The returned function copies into `to`, once, on any thread of rank 0. Until it
  // has returned or been destroyed, the next update waits; on GPUs with room for a copy (MemoryUse::snapshot) only a
  // further snapshot() waits. `to` must not change meanwhile. A further call with the same `to` reuses its memory.
  std::function<void()> snapshot(Checkpoint& to);
  // Tensors that are not named keep their values; other float and integer types are converted (Tensor::to). Error(data)
  // names a tensor with an unknown name or a wrong shape. For names and shapes of other programs: fit_weights(). New
  // weights restart the moving average. Every rank calls these; rank 0's tensors are used.
  void set_weights(const std::vector<std::pair<std::string, Tensor>>& tensors);
  // Error(data) also names an unknown optimizer.
  void set_optimizer_state(const OptimizerState& state);
  // Swaps the weights with their moving average, for an evaluation; call it again before training continues. This and
  // the next two: Error(usage) without ema_decay.
  void swap_average();
  std::vector<std::pair<std::string, Tensor>> average_weights();
  void set_average_weights(const std::vector<std::pair<std::string, Tensor>>& tensors);
  // Number of updates of the moving average since it was last restarted. The warm-up depends on it. 0 on ranks other
  // than 0, and without ema_decay. Error(usage) for a negative number.
  std::int64_t average_updates() const;
  void set_average_updates(std::int64_t updates);
  std::int64_t step_count() const;  // training steps so far; each forward() counts as one. Part of dropout's key
  void set_step_count(std::int64_t steps);
  bool replicas_identical() const;              // compares the replicas' weights bit by bit
  std::optional<LossScale> loss_scale() const;  // scale of the next step; empty without loss scaling
  void set_loss_scale(const LossScale& scale);  // Error(usage) without loss scaling, or if the scale is not positive

  // --- what was chosen ---------------------------------------------------------------------------------------
  const Model& model() const;
  // Every automatic choice is resolved, except graphs: see graphs_choice().
  const DataParallelOptions& options() const;
  int size() const;                                    // devices of all ranks: replicas, or stages of replicas
  std::vector<std::string> device_names() const;       // of each of them; with host names if there are several hosts
  std::vector<std::string> device_identities() const;  // of each of them: the UUID of a GPU; empty for a CPU
  std::string communicator() const;                    // name, and the GPU pairs that it connects through the host
  Choice communicator_choice() const;                  // "host", "p2p", "nccl", "mpi"
  std::string threads_notice() const;                  // the limit that reduces the threads per replica, or empty
  Choice graphs_choice() const;  // "none", "one per replica", "one of all replicas"; changes if a capture fails
  // One line: the stages, how evenly they share the work, and the share of the time in which they are idle because of
  // the schedule, for stages of equal time. Empty without a pipeline.
  std::string describe_pipeline() const;
  MemoryUse memory_use(int device) const;  // allocated on it; of other ranks: as of the last prepare()
  std::string describe_steps() const;      // one line: whether training steps run as graphs, or why not
  std::string describe_plan(std::int64_t global_batch) const;  // steps, buffers, reorders, buckets, as text

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Measures DataParallelOptions::split_weights for devices of different speed. Trains a few steps on random images with
// equal shares. The weights are proportional to the images per second of each replica's forward and backward passes.
// If all speeds are within 5 %, the weights are equal. `batch`: global batch size. Error(usage) with a process group,
// with logical shards, and with deterministic, because the results would depend on timings.
std::vector<int> measure_split(const Model& model, const DataParallelOptions& options, std::int64_t batch);

}  // namespace dp
