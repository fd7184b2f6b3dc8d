// The moving average of the weights and running statistics, on the master replica:
// average = decay * average + (1 - decay) * value.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/replica/replica.h"

namespace dp::engine {

// All calls run on the master's worker.
class MovingAverage {
 public:
  // Bytes of the average of these values and running statistics.
  static std::size_t bytes(const Replica::Sizes& sizes) { return sizes.values + sizes.buffers; }
  // Allocates on the master, which must outlive this object. `buffer_elements`: number of running statistics; may be 0.
  MovingAverage(Replica& master, double decay, std::int64_t buffer_elements);

  void restart();  // sets the average to the current values; waits for the device
  void update();   // enqueues one update on the compute stream
  void swap();     // swaps the current values and the average; waits for the device

 private:
  Replica& master_;
  const std::size_t value_bytes_, buffer_bytes_;
  std::unique_ptr<kernels::Buffer> values_, buffers_;
  std::unique_ptr<kernels::Op> update_values_, update_buffers_;  // update_buffers_: null without running statistics
};

}  // namespace dp::engine
