// The plans of a replica and their memory, and the items that run them.
//
// A replica processes one or more shards of a micro-batch, each with its own rows, plan and gradients. Shards run
// forward and backward one after another. If their statistics are merged during a pass, they run interleaved, segment
// by segment.
//
// With a pipeline, several micro-batches are in progress at the same time. An item is a shard of one of them:
// item = micro-batch * local_shards + shard. Without a pipeline, items are the shards of the current micro-batch.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/step/arenas.h"
#include "engine/step/device_images.h"
#include "engine/step/input_feed.h"
#include "engine/step/step_clock.h"

namespace dp::engine {

// The rows of one shard of a micro-batch. The host memory must stay valid until the step after next begins.
struct ShardInput {
  const float* images = nullptr;  // (rows, ...) row-major; null if the device makes them from `resident`
  const void* labels = nullptr;   // int32 class numbers or float32 targets; null for a forward pass without loss
  const std::int64_t* samples = nullptr;
  std::int64_t rows = 0;
  const DeviceImages* resident = nullptr;           // device-resident data set that `samples` index; null: none
  std::size_t target_bytes = sizeof(std::int32_t);  // of a row of `labels`
};

// Bytes of the activation arena, which all plans of a replica share. The estimate of memory reads them too.
struct ActivationArenaSize {
  std::size_t lane = 0;       // activations and, after them, workspace
  std::size_t workspace = 0;  // of all lanes, in the plan with the largest lane
  std::size_t saved_input = 0;

  // Returns whether the arena must be larger for this plan.
  bool grow(const Plan& plan, const ReplicaOptions& options);
  bool grow(std::size_t lane_bytes, std::size_t workspace_bytes, std::size_t input_bytes,
            const ReplicaOptions& options);
  std::size_t total(const ReplicaOptions& options) const;
};

class PlanRunner {
 public:
  // The other arguments must outlive this object. `feed`: null if the device reads host memory.
  PlanRunner(const Model& model, const NormTable& norms, const ReplicaOptions& options, OpenDevice& device,
             Arenas& arenas, StepClock& clock, InputFeed* feed);

  // --- plans and their memory -----------------------------------------------------------------------------------
  const std::vector<std::unique_ptr<Plan>>& plans() const { return plans_; }  // created so far
  // Returns the plan for these options, and creates it on first use. It has the memory to run.
  const Plan& plan(const PlanOptions& options);
  // The same, but the plan cannot run before plan() is called: its memory may be missing.
  const Plan& plan_without_memory(const PlanOptions& options);
  const Plan* find_plan(const PlanOptions& options) const;  // null if it was not created yet
  // Bytes that the plan's folded weights need; 0 if they are allocated.
  std::size_t missing_folded_bytes(const Plan& plan) const { return folded_.contains(&plan) ? 0 : plan.folded_bytes(); }
  // Activations and workspace of the largest plan, for each lane, and saved inputs; null before the first plan. Logits
  // that DataParallel::forward() returned share ownership.
  const std::shared_ptr<kernels::Buffer>& activation_arena() const { return activation_arena_; }
  // Uploads the data set and allocates what a shard of `rows` rows needs, unless already done.
  void upload_images(const DeviceImages& images, std::int64_t rows);
  // Reserves staging memory for the upload of a shard of `rows` rows. `resident`: the device makes the images, so they
  // are not uploaded.
  void reserve_copies(std::int64_t rows, bool resident);
  // Describes a plan, with the kernels of each step if the device has graphs. Call between steps.
  std::string describe(const Plan& plan);

  // --- items ----------------------------------------------------------------------------------------------------
  // Sets the plan and the input of an item. Uploads the input if the device cannot read host memory. A null plan: the
  // item has no rows. Bind items in ascending order from 0.
  void bind(int item, const Plan* plan, const ShardInput& input);
  const Plan* plan_of(int item) const { return at(item).plan; }  // null if it has no rows
  std::byte* address(int item, const Ref& ref) const { return address(at(item), ref); }
  std::byte* saved_input(int item) const;  // with ReplicaOptions::saved_inputs

  // --- work, enqueued on the compute stream ----------------------------------------------------------------------
  // Makes the images of every item with a device-resident data set. Call after bind() and before the steps. The
  // enqueued work is equal in all steps of a kind, so a graph can capture it.
  void make_images();
  // Runs the plan's fold(), unless that was done for this version of weights and running statistics. In a pipeline,
  // call it before the stage receives its input, because folding may use that memory.
  void fold(int item, std::uint64_t version);
  void run(int item, const std::vector<PlanStep>& steps) {
    for (const PlanStep& step : steps) enqueue(at(item), step);
  }
  // Runs the item's next segment of a pass: up to and including the next step with ends_segment, or to the end.
  // `first`: begins the pass. Calls after(step) after each step.
  template <typename After>
  void run_segment(int item, const std::vector<PlanStep>& steps, bool first, After&& after) {
    Item& own = items_[static_cast<std::size_t>(item)];
    if (first) own.next = 0;
    while (own.next < steps.size()) {
      const PlanStep& step = steps[own.next++];
      enqueue(own, step);
      after(step);
      if (step.ends_segment) return;
    }
  }
  // Call after enqueuing a step. Waits until the previous step is done, so that at most two minibatches are in use.
  void throttle();

 private:
  struct Item {
    const Plan* plan = nullptr;
    std::array<std::byte*, 3> inputs{};  // images, labels, samples
    std::int64_t resident_rows = 0;      // rows whose images make_images() makes from a device-resident data set
    std::size_t next = 0;                // index of the next step in the running pass
    // Where the steps of its plan find their arguments.
    std::array<std::byte*, static_cast<std::size_t>(Space::count)> base{};
    std::byte* workspace = nullptr;
    std::size_t global_shard = 0;  // the shard's number among those of all replicas
  };
  struct Folded {
    std::unique_ptr<kernels::Buffer> memory;
    std::uint64_t version = 0;  // of the weights that are folded; 0: none yet
  };

  const Item& at(int item) const { return items_[static_cast<std::size_t>(item)]; }
  static std::byte* address(const Item& item, const Ref& ref) {
    return item.base[static_cast<std::size_t>(ref.space)] + ref.offset + ref.shard_stride * item.global_shard;
  }
  void enqueue(const Item& item, const PlanStep& step);
  void set_addresses(int number, Item& item) const;
  void reserve(const Plan& plan);
  InputFeed::Parts parts_of(const ShardInput& input) const;

  const Model& model_;
  const NormTable& norms_;
  const ReplicaOptions& options_;
  OpenDevice& device_;
  Arenas& arenas_;
  StepClock& clock_;
  InputFeed* const feed_;
  std::vector<Item> items_;
  std::int64_t rows_bound_ = 0;  // of the items bound so far
  std::vector<std::unique_ptr<Plan>> plans_;
  std::map<const Plan*, Folded> folded_;  // of plans with weights of their own
  ActivationArenaSize activation_arena_size_;
  std::shared_ptr<kernels::Buffer> activation_arena_;
  DeviceImageSets image_sets_;                               // device-resident data sets
  std::unique_ptr<kernels::Buffer> images_;                  // gathered from image_sets_
  std::array<std::unique_ptr<kernels::Event>, 2> consumed_;  // recorded at the end of the last two steps
  unsigned current_ = 0;
};

}  // namespace dp::engine
