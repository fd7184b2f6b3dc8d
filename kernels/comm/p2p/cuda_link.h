// A link between two GPUs of one process. The sender copies each tensor to a queue on its own device, or in host memory
// if the receiver's device cannot read that. A stream of the link copies it to a second queue on the receiver's device
// while the receiver computes.
//
// A stream can only wait for events that were recorded before. So each end's thread waits, while it enqueues, until the
// other end has enqueued what it depends on. No thread waits for a device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/device/cuda/context.h"

namespace dp::kernels::cuda {

class CudaLink final : public Link {
 public:
  CudaLink(CudaContext& sender, CudaContext& receiver);

  void reserve(std::size_t bytes) override;
  std::size_t held(End end) const override {
    return direct_ || end == End::receiver ? kSlots * slots_.front().bytes : 0;
  }
  void send(const void* data, std::size_t bytes, Stream& stream) override;
  void receive(void* data, std::size_t bytes, Stream& stream) override;
  bool joins_graphs() const override { return true; }
  void take_turns(End end, CaptureTurn* turn) override { turns_[static_cast<std::size_t>(end)] = turn; }
  void reset() override;

 private:
  struct Slot {
    DeviceMemory memory, arrived;  // of the sender's and of the receiver's device
    PinnedMemory pinned;
    std::size_t bytes = 0, used = 0;   // used: of the tensor in it
    EventHandle sent, taken, emptied;  // taken: `memory` has been read; emptied: `arrived` has been read
  };
  Slot& slot(std::uint64_t number) { return slots_[number % kSlots]; }
  void* place(const Slot& slot) const { return direct_ ? slot.memory.get() : slot.pinned.get(); }
  // Waits until `count` exceeds `number`. Throws Aborted if the abort flag of the end's context is set, GivenUp if the
  // capture is given up.
  void await(const std::atomic<std::uint64_t>& count, std::uint64_t number, End end);

  CudaContext &sender_, &receiver_;
  bool direct_ = false;  // the receiver's device can read the sender's memory
  std::unique_ptr<Stream> fetch_;
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint64_t> sent_{0}, received_{0};  // enqueued since reset(); each is written by its own end
  std::array<CaptureTurn*, 2> turns_{};               // by end: set while a graph is recorded
};

}  // namespace dp::kernels::cuda
