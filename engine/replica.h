// A model on one device: its streams, its memories, its plans. Used by its worker thread alone.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "dp/data_parallel.h"
#include "engine/failpoint.h"
#include "engine/plan.h"
#include "kernels/backend.h"
#include "kernels/step_state.h"

namespace dp::engine {

// The rows of a minibatch that one replica works on; host memory that stays valid until the step after next begins.
struct Shard {
  const float* images = nullptr;         // (rows, ...) row-major
  const std::int32_t* labels = nullptr;  // null in a forward without loss
  const std::int64_t* samples = nullptr;
  std::int64_t rows = 0;
};

class Replica {
 public:
  Replica(const Model& model, std::unique_ptr<kernels::Context> context, const ParameterTable& table, int rank);

  int rank() const { return rank_; }
  kernels::Context& context() { return *context_; }
  kernels::Stream& compute() { return *compute_; }
  const ParameterTable& table() const { return table_; }

  // The plan for these options, made on first use; its memory is placed then.
  const Plan& plan(const PlanOptions& options);
  // Binds the shard as what the plan's steps read, copying it where the device cannot read host memory.
  void bind(const Plan& plan, const Shard& shard);
  void upload_inputs(const kernels::StepInputs& inputs);

  // Enqueues steps on the compute stream; before(step) and after(step) are called around each.
  template <typename Before, typename After>
  void run(const std::vector<PlanStep>& steps, Before&& before, After&& after) {
    for (const PlanStep& step : steps) {
      before(step);
      enqueue(step);
      after(step);
    }
  }
  void run(const std::vector<PlanStep>& steps) {
    run(
        steps, [](const PlanStep&) {}, [](const PlanStep&) {});
  }

  std::byte* values() { return at({Space::value}); }
  std::byte* gradients() { return at({Space::gradient}); }
  std::byte* at(const Ref& ref) { return base_[static_cast<std::size_t>(ref.space)] + ref.offset; }
  kernels::StepInputs* inputs() { return reinterpret_cast<kernels::StepInputs*>(at({Space::step_inputs})); }
  kernels::StepResults* results() { return reinterpret_cast<kernels::StepResults*>(at({Space::step_results})); }
  const std::shared_ptr<kernels::Buffer>& arena() const { return arena_; }
  void zero_gradients();

  std::unique_ptr<kernels::Buffer> allocate(std::size_t bytes);  // counted in bytes_held()
  std::size_t bytes_held() const { return bytes_held_; }

  // Ends a step's work on its shard. Returns when the step before it is done with its own, so that at most two are in use.
  void bound_queue();

  // Waits for the compute stream, returns what the ops added up, and clears it.
  kernels::StepResults take_results();
  // One tensor between row-major host memory and its place in an arena of this device; waits.
  void import_entry(int entry, const Tensor& from, std::byte* arena);
  void export_entry(int entry, const std::byte* arena, Tensor& to);

  // Where this replica is, for the text of an error.
  void enter(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }

  PhaseTimes times;

 private:
  void enqueue(const PlanStep& step);
  void reserve(const Plan& plan);
  void set_base(Space space, void* pointer) {
    base_[static_cast<std::size_t>(space)] = static_cast<std::byte*>(pointer);
  }
  template <typename T>
  void bind_input(Space space, std::unique_ptr<kernels::Buffer>& staged, const T* host, std::int64_t count);

  const Model& model_;
  const std::unique_ptr<kernels::Context> context_;
  const ParameterTable& table_;
  const int rank_;
  std::unique_ptr<kernels::Stream> compute_;
  std::array<std::byte*, static_cast<std::size_t>(Space::count)> base_{};
  std::unique_ptr<kernels::Buffer> values_, gradients_, step_inputs_, step_results_;
  std::shared_ptr<kernels::Buffer>
      arena_;  // activations and workspace of the largest plan; shared with logits handed out
  std::byte* workspace_ = nullptr;
  std::unique_ptr<kernels::Buffer> images_, labels_, samples_;  // copies, where the device cannot read host memory
  std::vector<std::unique_ptr<Plan>> plans_;
  std::array<std::unique_ptr<kernels::Event>, 2> consumed_;  // the shards of the last two steps
  unsigned turn_ = 0;
  std::unique_ptr<kernels::Op> clear_gradients_;
  std::size_t bytes_held_ = 0;
  Phase phase_ = Phase::scatter;
};

}  // namespace dp::engine
