// A model on one device: its streams, its memories, its plans. Used by its worker thread alone.
//
// A replica works on one or several shards of a minibatch, each in a lane: the lane's rows, its plan for so many rows, its
// gradients. Lanes go through forward and backward one after another, or in turns where statistics are merged on the way.
#pragma once

#include <array>
#include <chrono>
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
#include "kernels/backend.h"
#include "kernels/step_state.h"

namespace dp::engine {

// The rows of a minibatch that one replica works on; host memory that stays valid until the step after next begins.
struct Shard {
  const float* images = nullptr;         // (rows, ...) row-major; null where `kept` says of what they are made
  const std::int32_t* labels = nullptr;  // null in a forward without loss
  const std::int64_t* samples = nullptr;
  std::int64_t rows = 0;
  const DeviceImages* kept = nullptr;  // `samples` are rows of it
};

struct ReplicaOptions {
  int rank = 0;
  int lanes = 1;
  bool in_turns = false;  // every lane's activations are kept while the others run
  bool scales_loss = false;
};

class Replica {
 public:
  Replica(const Model& model, std::unique_ptr<kernels::Context> context, const ParameterTable& table,
          const NormTable& norms, const ReplicaOptions& options);

  int rank() const { return options_.rank; }
  int lanes() const { return options_.lanes; }
  // How many lanes go through a step together: their activations are kept at the same time.
  int lanes_together() const { return options_.in_turns ? options_.lanes : 1; }
  kernels::Context& context() { return *context_; }
  const kernels::Context& context() const { return *context_; }
  kernels::Stream& compute() { return *compute_; }
  const ParameterTable& table() const { return table_; }

  const std::vector<std::unique_ptr<Plan>>& plans() const { return plans_; }  // made so far
  // The plan for these options, made on first use, and the memory for it.
  const Plan& plan(const PlanOptions& options);
  // The same without memory.
  const Plan& planned(const PlanOptions& options);
  std::size_t arena_bytes_for(const Plan& plan) const;  // of all lanes that go through a step together
  // What batches of kept images need, for a lane of so many rows; made on first use.
  void keep(const DeviceImages& images, std::int64_t rows);
  // Room for what is copied from host memory of a shard of so many rows; `kept`: the device makes its images.
  void reserve_copies(std::int64_t rows, bool kept);
  // Makes the shard what a lane's steps read, copying it where the device cannot read host memory. A null plan: the lane has
  // no rows. Binds lane 0 first, then the next.
  void bind(int lane, const Plan* plan, const Shard& shard);
  // Enqueues the making of every lane's images whose shard brought none: behind bind(), before the lanes' steps, and like these the
  // same at every step of a kind.
  void make_images();
  // The lane whose memory at() and run() mean.
  const Plan* select(int lane);
  // With the kernels of each step, where the device has graphs. Between steps; the plan is this replica's.
  std::string describe(const Plan& plan);
  const Plan* plan_of(int lane) const { return lanes_[static_cast<std::size_t>(lane)].plan; }
  void upload_inputs(const kernels::StepInputs& inputs);

  // Enqueues steps on the compute stream.
  void run(const std::vector<PlanStep>& steps) {
    for (const PlanStep& step : steps) enqueue(step);
  }
  // The same for the selected lane's next leg of a stage: up to the step that gathers, or the end. after(step) is called behind each.
  template <typename After>
  void run_leg(const std::vector<PlanStep>& steps, bool first, After&& after) {
    std::size_t& next = lanes_[static_cast<std::size_t>(lane_)].next;
    if (first) next = 0;
    while (next < steps.size()) {
      const PlanStep& step = steps[next++];
      enqueue(step);
      after(step);
      if (step.gathers) return;
    }
  }

  std::byte* values() { return at({Space::value}); }
  std::byte* gradients() { return static_cast<std::byte*>(gradients_->data()); }  // of lane 0; the others' follow
  std::byte* buffers() { return at({Space::buffer}); }
  // Mixed precision: layers read the values in another type, from an arena with the same places.
  bool mixed() const { return context_->activation_type() != context_->compute_type(); }
  std::byte* low_value(std::int64_t element) {
    return at(
        {Space::low_value, static_cast<std::size_t>(element) * context_->element_bytes(context_->activation_type())});
  }
  kernels::LossScaler* scaler() {  // null where no loss is scaled
    return scaler_ ? static_cast<kernels::LossScaler*>(scaler_->data()) : nullptr;
  }
  // Waits for the compute stream.
  kernels::LossScaler read_scaler();
  void set_scaler(const kernels::LossScaler& scaler);
  std::byte* at(const Ref& ref) {
    return base_[static_cast<std::size_t>(ref.space)] + ref.offset + ref.part_stride * static_cast<std::size_t>(part());
  }
  kernels::StepInputs* inputs() { return reinterpret_cast<kernels::StepInputs*>(at({Space::step_inputs})); }
  kernels::StepResults* results() { return static_cast<kernels::StepResults*>(step_results_->data()); }  // of lane 0
  const std::shared_ptr<kernels::Buffer>& arena() const { return arena_; }
  void zero_gradients(int lane);
  // Says that the selected lane's part holds nothing.
  void zero_part(const Gather& gather);

  // Counted in memory_use() as `kind` until forgotten.
  std::unique_ptr<kernels::Buffer> allocate(std::size_t bytes, std::size_t MemoryUse::*kind);
  void forget(std::size_t bytes, std::size_t MemoryUse::*kind) { held_.*kind -= bytes; }
  const MemoryUse& memory_use() const { return held_; }
  std::uint64_t allocations() const { return allocations_; }  // so far: places differ from before when it does
  // Of the values in the activations' type; 0 without mixed precision.
  static std::size_t low_bytes(const ParameterTable& table, const kernels::Context& context);
  // Of one lane's memory, activations first.
  static std::size_t activation_bytes(const Plan& plan);

  // Ends a step's work on its shard. Returns when the step before it is done with its own, so that at most two are in use.
  void throttle();

  // Waits for the compute stream, returns what the ops of each lane added up, and clears it.
  std::vector<kernels::StepResults> take_results();
  // One tensor between row-major host memory and its place in an arena of this device; waits.
  void import_entry(int entry, const Tensor& from, std::byte* arena);
  void export_entry(int entry, const std::byte* arena, Tensor& to);

  // Where this replica is, for errors, watchdog and timeline; what is enqueued on the compute stream counts as that.
  void enter(Phase phase) {
    visit(phase);
    if (timing_) name_phase(to_string(phase));
    if (tracer_ != nullptr) tracer_->enter(phase);
  }
  // The same for work on a bucket in the middle of a phase, which goes on after it.
  void visit(Phase phase) {
    progress_.enter(phase);
    compute_->label(label_of(phase));
    compute_->detail(0);
    if (feed_) feed_->label(label_of(Phase::scatter));
  }
  // What is enqueued on the compute stream now is many phases in one.
  void enter_graph() {
    enter(Phase::forward);
    if (timing_) compute_->label(kGraph);
  }
  Phase phase() const { return progress_.phase(); }
  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  // From now on tells its steps and its compute stream's work there. The tracer outlives it.
  void trace(Tracer& tracer) {
    tracer_ = &tracer;
    compute_->trace(&tracer.compute);
  }
  std::size_t label_of(Phase phase) const { return timing_ ? static_cast<std::size_t>(phase) : kUntimed; }

  // Around each training step, which is called `step`: the work enqueued between, and only that, is added to the times, by this
  // end_timing() or, on devices that are behind, by the next.
  void begin_timing(std::int64_t step);
  void end_timing();
  PhaseTimes take_times() { return std::exchange(times_, {}); }

 private:
  static constexpr std::size_t kUntimed = kernels::kLabels - 1;  // no phase has this number
  static constexpr std::size_t kGraph = kernels::kLabels - 2;
  struct Lane {
    const Plan* plan = nullptr;
    std::array<std::byte*, 3> inputs{};  // images, labels, samples
    std::int64_t made = 0;               // rows of images that make_images() makes
    std::size_t next = 0;                // step of the running stage
  };

  void enqueue(const PlanStep& step);
  void name_phase(const char* name);  // for profilers; null: it ends
  int part() const { return options_.rank * options_.lanes + lane_; }
  void reserve(const Plan& plan);
  void at_least(std::unique_ptr<kernels::Buffer>& buffer, std::size_t bytes);
  void set_base(Space space, void* pointer) {
    base_[static_cast<std::size_t>(space)] = static_cast<std::byte*>(pointer);
  }
  InputFeed::Parts parts_of(const Shard& shard) const;

  const Model& model_;
  const std::unique_ptr<kernels::Context> context_;
  const ParameterTable& table_;
  const NormTable& norms_;
  const ReplicaOptions options_;
  int lane_ = 0;
  std::vector<Lane> lanes_;
  std::int64_t rows_bound_ = 0;       // of the lanes before the one that is being bound
  std::size_t activation_bytes_ = 0;  // of one lane, with workspace
  std::unique_ptr<kernels::Stream> compute_;
  std::array<std::byte*, static_cast<std::size_t>(Space::count)> base_{};
  std::unique_ptr<kernels::Buffer> values_, low_values_, gradients_, buffers_, moments_, step_inputs_, step_results_,
      scaler_;
  std::shared_ptr<kernels::Buffer>
      arena_;  // activations and workspace of the largest plan; shared with logits handed out
  std::byte* workspace_ = nullptr;
  std::optional<InputFeed> feed_;            // where the device cannot read host memory
  DeviceImageSets kept_;                     // bytes that images are made of,
  std::unique_ptr<kernels::Buffer> images_;  // here
  std::vector<std::unique_ptr<Plan>> plans_;
  std::array<std::unique_ptr<kernels::Event>, 2> consumed_;  // the shards of the last two steps
  unsigned turn_ = 0;
  std::unique_ptr<kernels::Op> clear_gradients_;
  std::vector<std::pair<std::size_t, std::unique_ptr<kernels::Op>>> clear_parts_;  // by bytes
  MemoryUse held_;
  std::uint64_t allocations_ = 0;
  Progress progress_;
  Tracer* tracer_ = nullptr;  // null: no timeline is kept
  PhaseTimes times_;
  bool timing_ = false, phase_named_ = false;
  std::chrono::steady_clock::time_point timing_since_;
};

}  // namespace dp::engine
