// A link between two GPUs of one process. The sender copies each tensor to memory of its own device, from which the
// receiver's device reads it; if that device cannot, the memory is pinned host memory.
//
// A stream can only wait for events that were recorded before. So each end's thread waits, while it enqueues, until the
// other end has enqueued what it depends on. No thread waits for a device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/cuda/context.h"

namespace dp::kernels::cuda {

class CudaLink final : public Link {
 public:
  CudaLink(CudaContext& sender, CudaContext& receiver);

  void reserve(std::size_t bytes) override;
  std::size_t held() const override { return direct_ ? kSlots * slots_.front().bytes : 0; }
  void send(const void* data, std::size_t bytes, Stream& stream) override;
  void receive(void* data, std::size_t bytes, Stream& stream) override;

 private:
  struct Slot {
    DeviceMemory memory;
    PinnedMemory pinned;
    std::size_t bytes = 0, used = 0;  // used: of the tensor in it
    EventHandle sent, taken;
  };
  Slot& slot(std::uint64_t number) { return slots_[number % kSlots]; }
  void* place(const Slot& slot) const { return direct_ ? slot.memory.get() : slot.pinned.get(); }

  CudaContext &sender_, &receiver_;
  bool direct_ = false;  // the receiver's device can read the sender's memory
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> sent_{0}, received_{0};  // enqueued so far; each is written by its own end only
};

}  // namespace dp::kernels::cuda
