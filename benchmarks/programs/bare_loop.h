// Training steps without DataParallel: one replica, its plan's steps in order, the update over the whole arena. What
// DataParallel at N = 1 is measured against.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dp/data_parallel.h"
#include "dp/loader.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "engine/replica/replica.h"

namespace dp::benchmarks {

class BareLoop {
 public:
  // `weights` are the initial ones, as DataParallel::weights() has them. The calling thread runs the steps; it is pinned here,
  // with its team. With float16 the loss is not scaled.
  BareLoop(const Model& model, const std::vector<std::pair<std::string, Tensor>>& weights, Device device, int threads,
           std::uint64_t seed, std::int64_t batch, bool fast_convolutions = false, Amp amp = Amp::off);

  void train_step(const Batch& batch, const Sgd& sgd);
  // Its parts, for those that look at each: the batch becomes what the plan's steps read; the steps; the update.
  void begin(const Batch& batch, const Sgd& sgd);
  engine::Replica& replica() { return *replica_; }
  const engine::Plan& plan() const { return *plan_; }
  void update();
  std::int64_t parameter_count() const { return table_->size(); }
  double take_loss();  // mean over the samples since the last call
  const MemoryUse& memory_use() const { return replica_->memory_use(); }

 private:
  Model model_;
  engine::NormTable norms_;
  std::unique_ptr<engine::ParameterTable> table_;
  std::unique_ptr<engine::Replica> replica_;
  const engine::Plan* plan_ = nullptr;
  std::unique_ptr<kernels::Buffer> momenta_;
  std::unique_ptr<kernels::Op> update_;
  kernels::StepInputs inputs_;
};

}  // namespace dp::benchmarks
