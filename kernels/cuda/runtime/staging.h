// Pinned host memory through which ordinary host memory travels to a device, so that a copy neither waits for the stream nor
// needs its source to stay; and back.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/cuda/runtime/owner.h"

namespace dp::kernels::cuda {

class Staging {
 public:
  void prepare();  // once the device is the current one; before anything else
  // Makes every slot at least so large. Allocating pinned memory can wait for every device: done while no collective runs.
  void reserve(std::size_t bytes);
  // Enqueues the copy of `bytes` from host memory to `dst`. A slot is used again when its last copy is done: a wait for work kSlots
  // copies old. A copy that is larger than what was reserved makes its slot larger.
  void copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

  // What comes from the device passes through this, a piece at a time.
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
  std::vector<PinnedMemory> retired_;  // of slots that have grown: to free pinned memory waits for every device
};

}  // namespace dp::kernels::cuda
