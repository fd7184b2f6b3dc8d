// Training steps without DataParallel: one replica runs its plan's steps in order, then one update over the whole
// parameter arena. The baseline for DataParallel at N = 1. As there, a device with graphs runs a step as a graph, from
// the second step on.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "dp/loader.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "engine/step/replica.h"

namespace dp::benchmarks {

class BareLoop {
 public:
  // `weights`: initial values, as returned by DataParallel::weights(). Pins the calling thread, which must run the
  // steps, and its thread team. With float16 the loss is not scaled.
  BareLoop(const Model& model, const std::vector<std::pair<std::string, Tensor>>& weights, Device device, int threads,
           std::uint64_t seed, std::int64_t batch, bool exact_convolutions = false, Amp amp = Amp::off);

  // All batches have one size, and are all resident or all on the host.
  void train_step(const Batch& batch, const Sgd& sgd);
  // The parts of train_step(): begin() uploads the inputs and binds the batch; the caller runs the steps of plan() on
  // replica(); update() applies SGD.
  void begin(const Batch& batch, const Sgd& sgd);
  engine::Replica& replica() { return *replica_; }
  const engine::Plan& plan() const { return *plan_; }
  void update();
  std::int64_t parameter_count() const { return table_->size(); }
  double take_loss();  // mean over the samples since the last call
  const MemoryUse& memory_use() const { return replica_->device.memory_use(); }

 private:
  void upload(const Batch& batch, const Sgd& sgd);
  void run();

  Model model_;
  engine::NormTable norms_;
  std::unique_ptr<engine::ParameterTable> table_;
  std::unique_ptr<engine::Replica> replica_;
  std::unique_ptr<kernels::Graph> graph_;  // of a step
  int eager_steps_ = 0;
  const engine::Plan* plan_ = nullptr;
  std::unique_ptr<kernels::Buffer> momenta_;
  std::unique_ptr<kernels::Op> update_;
  kernels::StepInputs inputs_;
};

}  // namespace dp::benchmarks
