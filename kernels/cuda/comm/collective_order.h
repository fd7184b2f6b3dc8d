// Collectives of one device run one after another, in the order of the calls, whatever streams and communicators they are on. Every
// rank calls in the same order, so every device runs them in the same order: two that run side by side can wait for each
// other across devices for ever.
#pragma once

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/stream.h"

namespace dp::kernels::cuda {

class CollectiveOrder {
 public:
  // Before the first collective, with the device bound.
  void prepare() { done_ = make_event_handle(); }
  // Around what `communicator` enqueues on `stream`, its only one.
  void begin(const void* communicator, CudaStream& stream) {
    if (last_ != nullptr && last_ != communicator) stream.wait(done_.get());
  }
  void end(const void* communicator, CudaStream& stream) {
    check(cudaEventRecord(done_.get(), stream.native()), "recording an event");
    last_ = communicator;
  }
  // What comes next follows everything so far in the order of its stream.
  void restart() { last_ = nullptr; }
  // The communicator is gone; another one may get its address.
  void forget(const void* communicator) {
    if (last_ == communicator) last_ = this;
  }

 private:
  EventHandle done_;
  const void* last_ = nullptr;  // whose collective done_ is behind
};

}  // namespace dp::kernels::cuda
