// A model on one device, with its streams, memory and plans. Used only by its worker thread.
//
// A replica processes one or more shards of a minibatch, each with its own rows, plan and gradients. Shards run forward
// and backward one after another. If their statistics are merged during a pass, they run interleaved, segment by
// segment.
//
// With a pipeline, this is one stage of a replica, and several micro-batches are in progress at the same time. An item
// is a shard of one of them: item = micro-batch * local_shards + shard. Without a pipeline, items are the shards of the
// current micro-batch.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dp/memory.h"
#include "dp/parallel_options.h"
#include "dp/statistics.h"
#include "engine/observe/failpoint.h"
#include "engine/observe/progress.h"
#include "engine/observe/tracer.h"
#include "engine/plan/plan.h"
#include "engine/replica/device_images.h"
#include "engine/replica/input_feed.h"
#include "kernels/device/backend.h"
#include "kernels/step_state.h"

namespace dp::engine {

// The rows of one shard of a minibatch. The host memory must stay valid until the step after next begins.
struct ShardInput {
  const float* images = nullptr;         // (rows, ...) row-major; null if the device makes them from `resident`
  const std::int32_t* labels = nullptr;  // null for a forward pass without loss
  const std::int64_t* samples = nullptr;
  std::int64_t rows = 0;
  const DeviceImages* resident = nullptr;  // device-resident data set that `samples` index; null: none
};

struct ReplicaOptions {
  int rank = 0;
  int stage = 0;          // of the pipeline
  int local_shards = 1;   // shards of a batch on this replica
  int shards = 1;         // on all replicas
  int micro_batches = 1;  // in progress at the same time
  int lanes = 1;          // items whose activations are held at the same time; item i uses lane i % lanes
  int saved_inputs = 0;  // items whose inputs are saved apart from the activations; item i uses number i % saved_inputs
  bool scales_loss = false;
};

class Replica {
 public:
  Replica(const Model& model, std::unique_ptr<kernels::Context> context, const ParameterTable& table,
          const NormTable& norms, const ReplicaOptions& options);

  int rank() const { return options_.rank; }
  int stage() const { return options_.stage; }
  int local_shards() const { return options_.local_shards; }
  int lanes() const { return options_.lanes; }
  kernels::Context& context() { return *context_; }
  const kernels::Context& context() const { return *context_; }
  kernels::Stream& compute() { return *compute_; }
  const ParameterTable& table() const { return table_; }

  const std::vector<std::unique_ptr<Plan>>& plans() const { return plans_; }  // created so far
  // Returns the plan for these options. Creates it on first use and reserves its memory.
  const Plan& plan(const PlanOptions& options);
  // The same without reserving memory.
  const Plan& planned(const PlanOptions& options);
  const Plan* find_plan(const PlanOptions& options) const;  // null if it was not created yet
  const ReplicaOptions& options() const { return options_; }
  // Where the input of the selected item is saved, with ReplicaOptions::saved_inputs.
  std::byte* saved_input();
  // Uploads the data set and allocates what a shard of `rows` rows needs, unless already done.
  void upload_images(const DeviceImages& images, std::int64_t rows);
  // Reserves staging memory for the upload of a shard of `rows` rows. `resident`: the device makes the images, so they
  // are not uploaded.
  void reserve_copies(std::int64_t rows, bool resident);
  // Sets the input of an item and selects it. Uploads it if the device cannot read host memory. A null plan: the item
  // has no rows. Bind items in ascending order from 0.
  void bind(int item, const Plan* plan, const ShardInput& input);
  // Enqueues the gather of images for every item with a device-resident data set. Call after bind() and before the
  // steps. The enqueued work is equal in all steps of a kind, so a graph can capture it.
  void make_images();
  // Selects the item whose memory at() and run() use. Returns its plan; null if it has no rows.
  const Plan* select(int item);
  // Describes a plan of this replica, with the kernels of each step if the device has graphs. Call between steps.
  std::string describe(const Plan& plan);
  const Plan* plan_of(int item) const { return items_[static_cast<std::size_t>(item)].plan; }
  void upload_inputs(const kernels::StepInputs& inputs);
  // Enqueues plan.fold() for the selected item, unless that was done for this version of weights and running
  // statistics. Call it before a pipeline's stage receives its input.
  void fold(const Plan& plan, std::uint64_t version);

  // Enqueues steps on the compute stream.
  void run(const std::vector<PlanStep>& steps) {
    for (const PlanStep& step : steps) enqueue(step);
  }
  // Enqueues the selected item's next segment of a pass: up to and including the next step that gathers, or to the
  // end. Calls after(step) after each step.
  template <typename After>
  void run_segment(const std::vector<PlanStep>& steps, bool first, After&& after) {
    std::size_t& next = items_[static_cast<std::size_t>(selected_)].next;
    if (first) next = 0;
    while (next < steps.size()) {
      const PlanStep& step = steps[next++];
      enqueue(step);
      after(step);
      if (step.gathers) return;
    }
  }

  std::byte* values() { return at({Space::value}); }
  std::byte* gradients() { return static_cast<std::byte*>(gradients_->data()); }  // of shard 0; shards 1, 2, ... follow
  std::byte* buffers() { return at({Space::buffer}); }
  // Mixed precision: layers read copies of the values in the activation type, in an arena with the same element order.
  bool mixed() const { return context_->activation_type() != context_->compute_type(); }
  std::byte* low_value(std::int64_t element) {
    return at(
        {Space::low_value, static_cast<std::size_t>(element) * context_->element_bytes(context_->activation_type())});
  }
  kernels::LossScaler* scaler() {  // null without loss scaling
    return scaler_ ? static_cast<kernels::LossScaler*>(scaler_->data()) : nullptr;
  }
  // Waits for the compute stream.
  kernels::LossScaler read_scaler();
  void set_scaler(const kernels::LossScaler& scaler);
  std::byte* at(const Ref& ref) {
    return base_[static_cast<std::size_t>(ref.space)] + ref.offset + ref.part_stride * static_cast<std::size_t>(part());
  }
  kernels::StepInputs* inputs() { return reinterpret_cast<kernels::StepInputs*>(at({Space::step_inputs})); }
  kernels::StepResults* results() { return static_cast<kernels::StepResults*>(step_results_->data()); }  // of shard 0
  const std::shared_ptr<kernels::Buffer>& arena() const { return arena_; }
  void zero_gradients(int shard);
  // Zeroes the selected item's part of the statistics, because the item has no rows.
  void zero_part(const Gather& gather);

  // Counts the bytes in memory_use() as `kind` until forget().
  std::unique_ptr<kernels::Buffer> allocate(std::size_t bytes, std::size_t MemoryUse::*kind);
  void forget(std::size_t bytes, std::size_t MemoryUse::*kind) { held_.*kind -= bytes; }
  // Counts bytes that another object has allocated on this device.
  void hold(std::size_t bytes, std::size_t MemoryUse::*kind) { held_.*kind += bytes, ++allocations_; }
  const MemoryUse& memory_use() const { return held_; }
  std::uint64_t allocations() const { return allocations_; }  // count so far; addresses may change when it does
  // Bytes of each buffer that the constructor allocates; 0: none. The estimate of memory reads them too.
  struct Sizes {
    std::size_t values = 0, low_values = 0, gradients = 0;  // low: in the activation type, with mixed precision
    std::size_t buffers = 0, moments = 0;                   // of batch normalisation
    std::size_t inputs = 0, results = 0, scaler = 0;

    MemoryUse use() const;
  };
  static Sizes sizes(const ParameterTable& table, const NormTable& norms, const kernels::Context& context,
                     const ReplicaOptions& options);
  // Bytes of the arena of activations, which serves several plans. The estimate of memory reads them too.
  struct ArenaSize {
    std::size_t lane = 0;       // activations and, after them, workspace
    std::size_t workspace = 0;  // of all lanes, in the plan with the largest lane
    std::size_t saved_input = 0;

    // Returns whether the arena must be larger for this plan.
    bool grow(const Plan& plan, const ReplicaOptions& options);
    bool grow(std::size_t lane_bytes, std::size_t workspace_bytes, std::size_t input_bytes,
              const ReplicaOptions& options);
    std::size_t total(const ReplicaOptions& options) const;
  };

  // Bytes for the plan's folded weights; 0 if they are allocated.
  std::size_t missing_for_fold(const Plan& plan) const { return folded_.contains(&plan) ? 0 : plan.folded_bytes(); }

  // Call after enqueuing a step. Waits until the previous step is done, so that at most two minibatches are in use.
  void throttle();

  // Waits for the compute stream, returns the accumulated results of each shard, and clears them.
  std::vector<kernels::StepResults> take_results();
  // Copies one tensor between row-major host memory and an arena of this device. Waits for the copy.
  void import_entry(int entry, const Tensor& from, std::byte* arena);
  void export_entry(int entry, const std::byte* arena, Tensor& to);

  // Sets the current phase for error messages, watchdog and timeline. Work enqueued on the compute stream is timed as
  // that phase.
  void enter(Phase phase) {
    visit(phase);
    if (timing_) name_phase(to_string(phase));
    if (tracer_ != nullptr) tracer_->enter(phase);
  }
  // The same for work on a bucket during a phase. The thread's timeline stays in the interrupted phase. Call visit()
  // with that phase afterwards.
  void visit(Phase phase) {
    progress_.enter(phase);
    compute_->label(label_of(phase));
    compute_->detail(0);
    if (feed_) feed_->label(label_of(Phase::scatter));
  }
  // Work enqueued on the compute stream is now a graph of several phases.
  void enter_graph() {
    enter(Phase::forward);
    if (timing_) compute_->label(kGraph);
  }
  Phase phase() const { return progress_.phase(); }
  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  // Records the steps and the compute stream's work in `tracer`, which must outlive this object.
  void trace(Tracer& tracer) {
    tracer_ = &tracer;
    compute_->trace(&tracer.compute);
  }
  std::size_t label_of(Phase phase) const { return timing_ ? static_cast<std::size_t>(phase) : kUntimed; }

  // Call around each training step; `step` is its number. Only work enqueued between the two calls is timed. An
  // asynchronous device may finish it after end_timing(); a later end_timing() then adds its time.
  void begin_timing(std::int64_t step);
  void end_timing();
  PhaseTimes take_times() { return std::exchange(times_, {}); }

 private:
  static constexpr std::size_t kUntimed = kernels::kLabels - 1;  // no phase has this number
  static constexpr std::size_t kGraph = kernels::kLabels - 2;
  struct Item {
    const Plan* plan = nullptr;
    std::array<std::byte*, 3> inputs{};  // images, labels, samples
    std::int64_t made = 0;               // rows that make_images() gathers
    std::size_t next = 0;                // index of the next step in the running pass
  };

  struct Folded {
    std::unique_ptr<kernels::Buffer> memory;
    std::uint64_t version = 0;  // of the weights that are folded; 0: none yet
  };

  void enqueue(const PlanStep& step);
  void name_phase(const char* name);  // profiler range; null ends it
  int selected_shard() const { return selected_ % options_.local_shards; }
  int part() const { return options_.rank * options_.local_shards + selected_shard(); }
  void reserve(const Plan& plan);
  void at_least(std::unique_ptr<kernels::Buffer>& buffer, std::size_t bytes);
  void set_base(Space space, void* pointer) {
    base_[static_cast<std::size_t>(space)] = static_cast<std::byte*>(pointer);
  }
  InputFeed::Parts parts_of(const ShardInput& input) const;

  const Model& model_;
  const std::unique_ptr<kernels::Context> context_;
  const ParameterTable& table_;
  const NormTable& norms_;
  const ReplicaOptions options_;
  int selected_ = 0;
  std::vector<Item> items_;
  std::int64_t rows_bound_ = 0;  // of the items bound so far
  ArenaSize arena_size_;
  std::unique_ptr<kernels::Stream> compute_;
  std::array<std::byte*, static_cast<std::size_t>(Space::count)> base_{};
  std::map<const Plan*, Folded> folded_;  // of plans that fold normalisations
  std::unique_ptr<kernels::Buffer> values_, low_values_, gradients_, buffers_, moments_, step_inputs_, step_results_,
      scaler_;
  std::shared_ptr<kernels::Buffer>
      arena_;  // activations and workspace of the largest plan; returned logits share ownership
  std::byte* workspace_ = nullptr;
  std::optional<InputFeed> feed_;            // set if the device cannot read host memory
  DeviceImageSets image_sets_;               // device-resident data sets
  std::unique_ptr<kernels::Buffer> images_;  // images gathered from image_sets_
  std::vector<std::unique_ptr<Plan>> plans_;
  std::array<std::unique_ptr<kernels::Event>, 2> consumed_;  // recorded at the end of the last two steps
  unsigned turn_ = 0;
  std::unique_ptr<kernels::Op> clear_gradients_;
  std::vector<std::pair<std::size_t, std::unique_ptr<kernels::Op>>> clear_parts_;  // by size in bytes
  MemoryUse held_;
  std::uint64_t allocations_ = 0;
  Progress progress_;
  Tracer* tracer_ = nullptr;  // null: no timeline is recorded
  PhaseTimes times_;
  bool timing_ = false, phase_named_ = false;
  std::chrono::steady_clock::time_point timing_since_;
};

}  // namespace dp::engine
