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
  // Allocates on the master, which must outlive this. `buffer_elements`: of the running statistics; 0: the model has none.
  MovingAverage(Replica& master, double decay, std::int64_t buffer_elements);

  void restart();  // the average becomes the current weights; waits for the device
  void update();   // enqueues one update on the compute stream
  void swap();     // swaps weights and average; waits for the device

 private:
  Replica& master_;
  const std::size_t value_bytes_, buffer_bytes_;
  std::unique_ptr<kernels::Buffer> values_, buffers_;
  std::unique_ptr<kernels::Op> update_values_, update_buffers_;  // the buffers' are null without running statistics
};

}  // namespace dp::engine
