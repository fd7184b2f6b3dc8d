// A worker trains one replica on one device. It also holds what connects this replica to the others. worker.cpp has the
// step, in the order in which it runs. A device that is listed twice has two workers.
//
// With a pipeline, each stage of each replica has a worker. Each function runs on the worker's own thread and enqueues
// work, which streams and events order. forward_alone() and backward_alone() return when the device has done it.
// train() and evaluate() wait only for the step before, and update_alone() does not wait.
#pragma once

#include <memory>
#include <vector>

#include "dp/loader.h"
#include "engine/observe/crash_record.h"
#include "engine/step/gathered_loss.h"
#include "engine/step/gradient_sync.h"
#include "engine/step/logits_store.h"
#include "engine/step/model_setup.h"
#include "engine/step/moving_average.h"
#include "engine/step/pipeline/schedule.h"
#include "engine/step/replica.h"

namespace dp::engine {

class Team;

class Worker : public Replica {
 public:
  // `own_number`: in this process. `team` must outlive this object.
  Worker(Team& team, std::size_t own_number, std::unique_ptr<kernels::Context> context, int rank, int stage);

  // --- a whole step -------------------------------------------------------------------------------------------
  // `batch` must stay unchanged until the step after next begins. `inputs` are equal on every worker.
  void train(const Batch& batch, const kernels::StepInputs& inputs, const UpdateKind& update);
  // Also appends the logits to logits_store, if that is set.
  void evaluate(const Batch& batch, const kernels::StepInputs& inputs);

  // --- its parts, as nn.DataParallel has them -----------------------------------------------------------------
  // The forward pass of `rows` images. The master gathers the logits.
  void forward_alone(const Batch& batch, std::int64_t rows, bool training, const kernels::StepInputs& inputs);
  // Backward from the gradient of the logits (rows, classes), and the reduction.
  void backward_alone(const Tensor& logits_grad, std::int64_t rows);
  void update_alone(const kernels::StepInputs& inputs, const UpdateKind& update);

  // Where the class numbers, or the targets, of a batch begin, from row `row` on; null without them.
  const void* targets_of(const Batch& batch, std::int64_t row) const;

  const std::size_t number;

  // These are set while a DataParallel is made.

  // For the collectives on the compute stream: statistics of batch normalisation, and logits. Null for one replica.
  // gradient_sync has a communicator of its own, for gradients and weights.
  std::unique_ptr<kernels::Communicator> compute_communicator;
  std::unique_ptr<GradientSync> gradient_sync;
  GatheredLoss gathered_loss;
  std::unique_ptr<MovingAverage> moving_average;  // null without ema_decay, and if this is not the master
  std::unique_ptr<LogitsStore> logits_store;      // set later, and only if evaluations store logits
  std::unique_ptr<DeviceCopy> copy;               // for checkpoints; set later, where it is used

 private:
  struct Items {  // [begin, end): see plan_runner.h
    int begin, end;
  };

  void train_micro_batch(std::int64_t rows, int micro);
  void train_pipelined();
  void scatter(const Batch& batch, kernels::Range rows, int micro, bool training, bool gathers_logits);
  void forward(Items items, bool training);
  void recompute_forward(Items item);
  void update_running_statistics(int first_item);
  void loss(Items items);
  void loss_on_master(std::int64_t rows);
  void evaluate(Items items, const Batch& batch, kernels::Range rows);
  void backward(Items items, bool accumulate, bool last, Work work = Work::backward);
  bool update_waits() const;
  void finish_update();
  void update_moving_average();
  void send(kernels::Link& link, const Border& border, int item);
  void receive(kernels::Link& link, const Border& border, int item);
  bool saves_input() const { return options.saved_inputs > 0; }

  template <typename After, typename WithoutRows>
  void run_pass(Items items, const std::vector<PlanStep>& (Plan::*pass)() const,
                const std::vector<AllGather>& all_gathers, After&& after, WithoutRows&& without_rows);
  void all_gather_statistics(const AllGather& statistics);
  ShardInput input_of(const Batch& batch, kernels::Range rows) const;
  void check_finite();
  void plant_nan(int item, Ref place);
  bool run_failpoints(Phase phase);

  Team& team_;
  const ModelSetup& setup_;
  const Stage& stage_;
  std::vector<Action> actions_;  // of a pipeline's stage
  const InCrashRecord in_crash_record_{clock.progress(), rank(), setup_.pipelined() ? stage() : -1};
};

}  // namespace dp::engine
