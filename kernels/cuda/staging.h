// Pinned host memory through which ordinary host memory travels to a device, so that a copy neither waits for the stream nor
// needs its source to stay.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/cuda/owner.h"

namespace dp::kernels::cuda {

class Staging {
 public:
  // Makes every slot at least so large. Allocating pinned memory can wait for every device: done while no collective runs.
  void reserve(std::size_t bytes);
  // Enqueues the copy of `bytes` from host memory to `dst`. A slot is used again when its last copy is done: a wait for work kSlots
  // copies old. A copy that is larger than what was reserved makes its slot larger.
  void copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

 private:
  static constexpr std::size_t kSlots = 8;
  struct Slot {
    PinnedMemory memory;
    std::size_t bytes = 0;
    EventHandle copied;
  };
  void grow(Slot& slot, std::size_t bytes);

  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
  std::vector<PinnedMemory> retired_;  // of slots that have grown: to free pinned memory waits for every device
};

}  // namespace dp::kernels::cuda
