// The moving average of the weights and running statistics, on the master replica (with a pipeline, one per stage):
// average = d * average + (1 - d) * value, where d = min(decay, (1 + t) / (10 + t)) in update t = 1, 2, ... of this
// average. This warm-up is that of TensorFlow's ExponentialMovingAverage with num_updates. It keeps the share of the
// initial weights small in a short run.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/step/replica.h"

namespace dp::engine {

// All calls run on the master's worker.
class MovingAverage {
 public:
  // Bytes of the average of these values and running statistics.
  static std::size_t bytes(const Arenas::Sizes& sizes) { return sizes.values + sizes.running_statistics; }
  // Allocates on the master, which must outlive this object. `statistics_elements`: elements of the running statistics;
  // may be 0.
  MovingAverage(Replica& master, double decay, std::int64_t statistics_elements);

  void restart();  // sets the average to the current values, without updates; waits for the device
  void update();   // enqueues one update on the compute stream, with StepInputs::average_share of the step
  void swap();     // swaps the current values and the average; waits for the device

  const std::byte* values() const { return static_cast<const std::byte*>(values_->data()); }
  const std::byte* statistics() const {  // null without running statistics
    return statistics_ ? static_cast<const std::byte*>(statistics_->data()) : nullptr;
  }

  // These are called while no worker runs.
  double next_share() const;      // average_share of the next update: 1 - d
  void updated() { ++updates_; }  // a step has ended; a skipped one counts, because it updates the average too
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  Replica& master_;
  const double decay_;
  const std::size_t value_bytes_, statistics_bytes_;
  std::int64_t updates_ = 0;
  std::unique_ptr<kernels::Buffer> values_, statistics_;
  std::unique_ptr<kernels::Op> update_values_;
  std::unique_ptr<kernels::Op> update_statistics_;  // null without running statistics
};

}  // namespace dp::engine
