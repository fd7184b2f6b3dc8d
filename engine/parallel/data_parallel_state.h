// DataParallel::State, shared by the files that implement DataParallel.
#pragma once

#include <compare>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "dp/process_group.h"
#include "engine/base/split.h"
#include "engine/observe/failpoint.h"
#include "engine/observe/tracer.h"
#include "engine/observe/watchdog.h"
#include "engine/parallel/gradient_sync.h"
#include "engine/parallel/moving_average.h"
#include "engine/parallel/step_graphs.h"
#include "engine/parallel/worker_pool.h"
#include "engine/plan/parameters.h"
#include "engine/process_group/process_group_state.h"
#include "engine/replica/replica.h"

namespace dp {

struct ResolvedOptions {
  DataParallelOptions options;
  std::string communicator_reason;  // why options.comm was chosen
};
// Resolves every automatic choice except graphs. Error(usage) for impossible options.
ResolvedOptions resolved(DataParallelOptions options);
int ranks_of(const DataParallelOptions& options);                         // replicas of all ranks
int shards_of(const DataParallelOptions& options);                        // of a batch, over all replicas
std::optional<DType> activations_of(const DataParallelOptions& options);  // empty without mixed precision
std::string_view communicator_name(Comm comm);                            // the backends' name for it
// Sizes of buckets and arenas are multiples of this number of elements. With nccl, all ranks' slices of a bucket are
// then equally large, as NCCL's reduce-scatter and all-gather require.
std::int64_t bucket_granularity(const DataParallelOptions& options);
bool vectors_first(const DataParallelOptions& options);  // see engine::ParameterTable
// The buckets if options.bucket_bytes is not set.
std::vector<engine::Bucket> automatic_buckets(const DataParallelOptions& options, const engine::ParameterTable& table,
                                              std::size_t bucket_bytes);
// `shape`: (images, ...). Error(usage) if the images do not have the model's input shape.
void check_images(const Shape& shape, const Model& model);

// Rows of the plan that chooses the parameter layouts. The layouts hardly depend on the batch size.
inline constexpr std::int64_t kLayoutRows = 32;

struct DataParallel::State {
  using NamedTensor = std::pair<std::string, Tensor>;

  State(const Model& m, ResolvedOptions resolved);
  ~State();

  // Runs work(replica, gradient_sync) on every worker. An error message names replica, device, phase and step.
  template <typename F>
  void on_replicas(F&& work) {
    run([&](int local) {
      engine::Replica& replica = *replicas[static_cast<std::size_t>(local)];
      try {
        work(replica, *gradient_syncs[static_cast<std::size_t>(local)]);
      } catch (const kernels::Aborted&) {
        throw;
      } catch (...) {
        rethrow_with_place(replica);
      }
    });
  }
  // Runs work(index of the replica in this process) on every worker.
  template <typename F>
  void run(F&& work) {
    const Watched call(watchdog.get());
    try {
      pool.run(work);
    } catch (...) {
      rethrow_cause();
    }
  }
  // Call it in a catch block. If the current exception only follows from another failure, throws that failure;
  // otherwise rethrows the exception.
  [[noreturn]] void rethrow_cause() const;
  void watch();  // creates the watchdog
  void trace();  // creates the tracers
  std::string last_of(const engine::Replica& replica) const;
  // Like on_replicas(), but only on this process's first replica: the master, or with a process group this rank's own.
  template <typename F>
  void on_first(F&& work) {
    on_replicas([&](engine::Replica& replica, engine::GradientSync& gradient_sync) {
      if (&replica == replicas.front().get()) work(replica, gradient_sync);
    });
  }
  // Like on_replicas(), but only on the master, the replica of rank 0.
  template <typename F>
  void on_master(F&& work) {
    on_replicas([&](engine::Replica& replica, engine::GradientSync& gradient_sync) {
      if (replica.rank() == 0) work(replica, gradient_sync);
    });
  }
  [[noreturn]] void rethrow_with_place(const engine::Replica& replica) const;

  int size() const { return ranks_of(options); }  // replicas of all ranks
  kernels::Communicator& io_of(const engine::Replica& replica) { return *io[local(replica)]; }
  std::size_t local(const engine::Replica& replica) const {
    return static_cast<std::size_t>(replica.rank() - replicas.front()->rank());
  }
  // `gathers`: the master gathers the logits. One op may then not compute both logits and loss. The same holds with
  // failpoints, which may set a logit to NaN.
  engine::PlanOptions plan_options(std::int64_t rows, bool training, bool accumulate, bool gathers) const {
    return {rows,
            training,
            accumulate,
            options.dropout,
            options.batch_norm,
            scales_loss(),
            training && !gathers && failpoints.empty(),
            shards()};
  }
  int local_shards() const { return replicas.front()->local_shards(); }
  int shards() const { return shards_of(options); }
  // The rows of a batch or micro-batch that belong to shard `shard` of a replica.
  kernels::Range rows_of(std::int64_t batch, const engine::Replica& replica, int shard) const {
    if (options.process_group) return {0, batch};
    return engine::shard_of(batch, replica.rank() * local_shards() + shard, shards(), options.split);
  }
  // A kind of batch. Plans and memory are prepared once per kind.
  struct Placed {
    std::int64_t rows;
    bool training, gathers;  // gathers: the master gathers the logits
    int micro_batches;
    std::shared_ptr<const ImageSet> set{};  // source of the images; null: host memory
    bool augment = false;
    auto operator<=>(const Placed&) const = default;
  };
  Placed training_batch(std::int64_t rows, const DeviceImages& resident) const {
    return {rows, true, options.loss == LossAt::gathered, options.grad_accum_steps, resident.set, resident.augment};
  }
  static Placed evaluated_batch(std::int64_t rows, const DeviceImages& resident) {
    return {rows, false, false, 1, resident.set, resident.augment};
  }
  void place(engine::Replica& replica, const Placed& batch);
  // Call it before allocating. Error(device) with the bytes needed, the bytes free and what would fit, if a device has
  // too little memory. `needs`: bytes per replica of this process. `together`: all ranks make this call, and on CPUs
  // the needs of ranks on the same host are added.
  using FitsText = std::function<std::string(std::size_t room, std::size_t replicas)>;
  void judge_memory(const std::vector<std::size_t>& needs, bool together, const std::string& what,
                    const FitsText& fits);
  void require_room_for_weights(const kernels::Context& context);
  // `state`: of the optimizer, if this rule's is to be allocated too.
  void require_room_for(const std::vector<Placed>& batches, std::optional<kernels::UpdateRule> state, bool together);
  std::size_t taken(std::size_t bytes) const;  // bytes that a replica's buffer of this size occupies
  std::size_t missing_for(engine::Replica& replica, const std::vector<Placed>& batches) const;
  void reserve(const Placed& batch);  // on all replicas, once per kind of batch
  // Allocates the optimizer's state on all replicas, if its updates use any. Another optimizer's state is lost.
  void reserve_state(const Optimizer& optimizer);
  void reserve_state_of(kernels::UpdateRule rule);
  // `optimizer`: null for work without an update.
  kernels::StepInputs step_inputs(std::int64_t global_batch, const Optimizer* optimizer = nullptr) const;
  bool scales_loss() const { return options.amp == Amp::float16; }
  bool update_waits_for_gradient() const {
    return options.clip_grad_norm || options.on_nonfinite == OnNonfinite::skip || scales_loss();
  }

  void await_devices() noexcept;
  void make_graphs();
  std::string graphs_refusal() const;
  // Whether the next step must not run as a graph, because of failpoints or because it is traced.
  bool step_is_eager() const { return !failpoints.empty() || (!tracers.empty() && tracers.front()->records_next()); }

  // The parts of a step. Each runs on a replica's worker.
  void train(engine::Replica& replica, engine::GradientSync& gradient_sync, const Batch& batch,
             const Optimizer& optimizer);
  // Forward to backward; for the last micro-batch also the update. Reads no host memory.
  void train_micro_batch(engine::Replica& replica, engine::GradientSync& gradient_sync, std::int64_t rows, int micro);
  // Splits `rows` of the batch over all shards.
  void scatter(engine::Replica& replica, const Batch& batch, kernels::Range rows, bool training, bool accumulate,
               bool gathers);
  struct ShardRange {
    int begin = 0, end = 1;
  };
  void forward(engine::Replica& replica, ShardRange shards, bool training);
  void local_loss(engine::Replica& replica, ShardRange shards);
  void upload_labels(engine::Replica& replica, const Batch& batch,
                     kernels::Range rows);  // for gathered_loss()
  void gathered_loss(engine::Replica& replica, std::int64_t rows);
  void gather_logits(engine::Replica& replica, std::int64_t rows);
  void backward(engine::Replica& replica, engine::GradientSync& gradient_sync, ShardRange shards, bool accumulate,
                bool last);
  void update_running_statistics(engine::Replica& replica);
  void make_average();
  void restart_average();
  void update_average(engine::Replica& replica, engine::GradientSync& gradient_sync);
  std::size_t moments_bytes() const { return norms.moments_bytes() * static_cast<std::size_t>(shards()); }
  std::size_t buffer_bytes() const { return static_cast<std::size_t>(norms.buffer_size()) * size_of(table->type()); }
  // Error(usage) if batch normalisation would train on one value per channel, as in PyTorch.
  void require_two_values(std::int64_t rows, std::int64_t global_rows, int micro_batches) const;
  void broadcast_buffers();  // sends the master's running statistics to every replica
  // Collective in a process group: returns the values of all ranks, in rank order.
  template <typename T>
  std::vector<T> of_all_ranks(const T& mine) const;
  template <typename After, typename Idle>
  void run_stage(engine::Replica& replica, ShardRange shards,
                 const std::vector<engine::PlanStep>& (engine::Plan::*stage)() const,
                 const std::vector<engine::Gather>& gathers, After&& after, Idle&& idle);
  void set_loss_scale(const LossScale& scale);
  // Collective. `communicators`: those of the GradientSync objects, which are created later.
  std::vector<engine::Bucket> make_buckets(std::span<const std::unique_ptr<kernels::Communicator>> communicators);
  std::size_t usual_bucket_bytes(std::span<const std::unique_ptr<kernels::Communicator>> communicators);
  void check_finite(engine::Replica& replica);
  void plant_nan(engine::Replica& replica, engine::Ref place);

  // The forward pass of the forward-backward-step interface. Returns `logits`.
  const Tensor& forward_all(const Tensor& images, bool training);
  void reserve_gather(std::int64_t rows);  // on the master
  kernels::Op& gathered_loss_op(std::int64_t rows);
  engine::ShardInput input_of(const Batch& batch, kernels::Range rows) const;
  void number_rows(std::int64_t rows);  // extends row_numbers to at least `rows` entries
  void end_step() { ++step, begun = false; }

  std::vector<NamedTensor> export_buffers();
  void import_buffer(engine::Replica& master, const BufferSpec& buffer, const Tensor& tensor);
  const BufferSpec* find_buffer(const std::string& name) const;
  void require_fit(const BufferSpec& buffer, const Tensor& tensor) const;

  // assemble() copies a sharded arena (gradients or a slot of the optimizer's state) into one buffer on the master.
  enum class Arena { value, gradient, state };
  std::vector<NamedTensor> export_arena(Arena arena, std::size_t slot = 0);
  void import_arena(Arena arena, const std::vector<NamedTensor>& tensors, std::size_t slot = 0);
  std::unique_ptr<kernels::Buffer> assemble(engine::Replica& master, Arena arena, std::size_t slot);
  std::int64_t skipped_updates();  // of those that take_stats() has not reported
  void wait_for_all();
  void gather_values();

  const Model model;
  DataParallelOptions options;  // resolved
  const std::string communicator_reason;
  std::vector<MemoryUse> rank_memory;  // of all ranks, at the last prepare()
  std::vector<std::string> device_names;
  const engine::Failpoints failpoints;
  const engine::NormTable norms;
  std::vector<engine::Gather> forward_gathers, backward_gathers;  // for training with synchronised normalisation
  std::vector<engine::Gather> pooled_gathers;                     // for pooled running statistics
  // PlanStep::ready_from of each segment of backward, in order. Used by replicas without rows: the calls of the two
  // communicators must have the same order on every device.
  std::vector<std::vector<int>> ready_in_segment;
  engine::WorkerPool pool;
  class Attached {  // attaches the pool's abort flag to the process group; the destructor detaches it
   public:
    Attached() = default;
    ~Attached() {
      if (group_ != nullptr) group_->state().detach(flag_);
    }
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;
    void to(ProcessGroup& group, kernels::AbortFlag* flag) {
      group.state().attach(flag);
      group_ = &group;
      flag_ = flag;
    }

   private:
    ProcessGroup* group_ = nullptr;
    kernels::AbortFlag* flag_ = nullptr;
  };
  Attached attached;
  std::vector<std::unique_ptr<engine::Tracer>> tracers;  // one per replica of this process; empty without tracing
  std::unique_ptr<engine::ParameterTable> table;
  std::unique_ptr<engine::ParameterGroups> groups;
  std::vector<std::unique_ptr<engine::Replica>> replicas;
  std::vector<std::unique_ptr<engine::GradientSync>> gradient_syncs;
  std::vector<std::unique_ptr<kernels::Communicator>> io;  // for all but gradients and weights; empty for one replica
  std::vector<std::vector<std::size_t>> part_bytes;        // scratch memory of each replica: bytes per rank

  // Used on the master only.
  std::shared_ptr<kernels::Buffer> gathered_logits, gathered_grad;
  std::unique_ptr<kernels::Buffer> gathered_labels, loss_workspace;
  const void* loss_labels = nullptr;               // of the current micro-batch
  std::unique_ptr<engine::MovingAverage> average;  // with ema_decay
  std::vector<std::pair<std::int64_t, std::unique_ptr<kernels::Op>>> loss_ops;

  std::unique_ptr<engine::StepGraphs> graphs;

  std::set<Placed> placed;
  std::optional<kernels::UpdateRule> state_rule;  // the optimizer whose state is allocated
  std::int64_t updates = 0;                       // including skipped ones that take_stats() has not reported
  std::int64_t step = 0;                          // completed training steps; the next step's dropout key
  bool begun = false;                             // forward() has used that key
  std::int64_t batches_tracked = 0;               // training forwards included in the running statistics
  bool buffers_behind = false;                    // only the master's running statistics are up to date
  std::int64_t forward_rows = 0;                  // of the last forward(); 0: backward() is not allowed
  Tensor forward_images;                          // of the last forward() or predict(); backward() reads them
  Tensor logits;
  std::vector<std::int64_t> row_numbers;  // 0, 1, 2, ...: dropout's sample keys for batches without samples

  class Watched {  // enables the watchdog during a call
   public:
    explicit Watched(engine::Watchdog* watchdog) : watchdog_(watchdog) {
      if (watchdog_ != nullptr) watchdog_->begin();
    }
    ~Watched() {
      if (watchdog_ != nullptr) watchdog_->end();
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    engine::Watchdog* watchdog_;
  };
  std::unique_ptr<engine::Watchdog> watchdog;  // null: no timeout. Reads the replicas until destroyed
};

template <typename T>
std::vector<T> DataParallel::State::of_all_ranks(const T& mine) const {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all;
  for (const std::string& text : options.process_group->exchange({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    if (text.size() != sizeof(T)) throw Error(ErrorCode::usage, "the ranks run different programs");
    std::memcpy(&all.emplace_back(), text.data(), sizeof(T));
  }
  return all;
}

}  // namespace dp
