// One step of data-parallel training on one replica. Each function runs on that replica's worker thread and enqueues
// work, which streams and events order. Functions named `_alone`, and the end of a step, wait until the device has done
// it. Read training_step.cpp from top to bottom to see the order.
#pragma once

#include <vector>

#include "dp/loader.h"
#include "engine/parallel/gathered_loss.h"
#include "engine/parallel/pipeline/schedule.h"
#include "engine/parallel/replica_set.h"
#include "engine/parallel/state/moving_average.h"
#include "engine/parallel/step_graphs.h"
#include "engine/replica/logits_store.h"

namespace dp::engine {

class TrainingStep {
 public:
  // The other objects must outlive this one.
  TrainingStep(ReplicaSet& team, StepGraphs& graphs, GatheredLoss& gathered_loss, const MovingAverages& averages);

  // --- a whole step -------------------------------------------------------------------------------------------
  // `batch` must stay unchanged until the step after next begins. `inputs` are equal on every replica.
  void train(Replica& replica, GradientSync& gradient_sync, const Batch& batch, const kernels::StepInputs& inputs,
             const UpdateKind& update);
  // `store`: also stores the logits there; may be null.
  void evaluate(Replica& replica, GradientSync& gradient_sync, const Batch& batch, const kernels::StepInputs& inputs,
                LogitsStore* store);

  // --- its parts, as nn.DataParallel has them -----------------------------------------------------------------
  // The forward pass of `rows` images. The master gathers the logits.
  void forward_alone(Replica& replica, GradientSync& gradient_sync, const Batch& batch, std::int64_t rows,
                     bool training, const kernels::StepInputs& inputs);
  // Backward from the gradient of the logits (rows, classes), and the reduction.
  void backward_alone(Replica& replica, GradientSync& gradient_sync, const Tensor& logits_grad, std::int64_t rows);
  void update_alone(Replica& replica, GradientSync& gradient_sync, const kernels::StepInputs& inputs,
                    const UpdateKind& update);

  // Extends the sample numbers of batches that have none to at least `rows`. Called while no worker runs.
  void number_rows(std::int64_t rows);

 private:
  struct Items {  // of a replica: see replica.h
    int begin, end;
  };

  void train_micro_batch(Replica& replica, GradientSync& gradient_sync, std::int64_t rows, int micro);
  void train_pipelined(Replica& replica, GradientSync& gradient_sync);
  void scatter(Replica& replica, const Batch& batch, kernels::Range rows, int micro, bool training, bool gathers);
  void forward(Replica& replica, Items items, bool training);
  void forward_again(Replica& replica, Items item);
  void update_running_statistics(Replica& replica, int first_item);
  void loss(Replica& replica, Items items);
  void gathered_loss(Replica& replica, std::int64_t rows);
  void evaluate(Replica& replica, Items items, const Batch& batch, kernels::Range rows, LogitsStore* store);
  void backward(Replica& replica, GradientSync& gradient_sync, Items items, bool accumulate, bool last,
                Work work = Work::backward);
  void finish_update(Replica& replica, GradientSync& gradient_sync);
  void update_average(Replica& replica, GradientSync& gradient_sync);
  void send(Replica& replica, kernels::Link& link, const Border& border, int item);
  void receive(Replica& replica, kernels::Link& link, const Border& border, int item);
  bool saves_input(const Replica& replica) const { return replica.options().saved_inputs > 0; }

  template <typename After, typename Idle>
  void run_pass(Replica& replica, Items items, const std::vector<PlanStep>& (Plan::*pass)() const,
                const std::vector<Gather>& gathers, After&& after, Idle&& idle);
  ShardInput input_of(const Batch& batch, kernels::Range rows) const;
  void check_finite(Replica& replica);
  void plant_nan(Replica& replica, Ref place);
  // Runs the failpoints of this phase, which may throw or wait. Returns whether one plants a NaN.
  bool run_failpoints(const Replica& replica, Phase phase) {
    return setup_.failpoints.hit(
        {phase, replica.rank(), team_.step, replica.stage(), replica.progress().micro_batch()});
  }

  ReplicaSet& team_;
  const ModelSetup& setup_;
  StepGraphs& graphs_;
  GatheredLoss& gathered_loss_;
  const MovingAverages& averages_;
  std::vector<std::vector<Action>> actions_;  // of each stage of a pipeline
  std::vector<std::int64_t> row_numbers_;     // 0, 1, 2, ...: dropout's sample keys for batches without samples
};

}  // namespace dp::engine
