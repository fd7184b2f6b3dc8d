// Pinned buffers for copies between ordinary host memory and a device. A copy to the device then does not wait for the
// stream, and its source may be freed at once.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/cuda/runtime/owner.h"

namespace dp::kernels::cuda {

class Staging {
 public:
  void prepare();  // call first, with the device current
  // Grows every slot to at least `bytes`. Pinned allocation can wait for every device, so call it while no collective
  // runs.
  void reserve(std::size_t bytes);
  // Enqueues a copy of `bytes` from host memory to `dst`. Waits if the slot's last copy, kSlots copies ago, is not
  // done. Grows the slot if `bytes` exceeds the reserved size.
  void copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

  // Buffer for downloads, one piece at a time.
  std::span<std::byte> out() { return {static_cast<std::byte*>(out_.get()), kOut}; }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kOut = 1 << 20;
  struct Slot {
    PinnedMemory memory;
    std::size_t bytes = 0;
    EventHandle copied;
  };
  void grow(Slot& slot, std::size_t bytes);

  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
  PinnedMemory out_;
  std::vector<PinnedMemory> retired_;  // of slots that have grown; freeing pinned memory waits for every device
};

}  // namespace dp::kernels::cuda
