// Runs the collectives of one device one after another, in call order, across all streams and communicators. Every rank
// makes the calls in the same order, so all devices agree. Concurrent collectives could wait for each other across
// devices forever.
#pragma once

#include "kernels/device/cuda/check.h"
#include "kernels/device/cuda/stream.h"

namespace dp::kernels::cuda {

class CollectiveOrder {
 public:
  // Call before the first collective, with the device bound.
  void prepare() { done_ = make_event_handle(); }
  // Call begin() before and end() after `communicator` enqueues on `stream`. Each communicator uses only one stream.
  void begin(const void* communicator, CudaStream& stream) {
    if (last_ != nullptr && last_ != communicator) stream.wait(done_.get());
  }
  void end(const void* communicator, CudaStream& stream) {
    check(cudaEventRecord(done_.get(), stream.native()), "recording an event");
    last_ = communicator;
  }
  // The next collective waits for no event. Its stream must order it after all earlier ones.
  void restart() { last_ = nullptr; }
  // Call when the communicator is destroyed. Another one may get its address.
  void forget(const void* communicator) {
    if (last_ == communicator) last_ = this;
  }

 private:
  EventHandle done_;
  const void* last_ = nullptr;  // communicator whose collective done_ follows
};

}  // namespace dp::kernels::cuda
