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
  // Enqueues the copy of `bytes` from host memory to `dst`. A slot grows when it is too small (in the first steps), and is used again
  // when its last copy is done: a wait for work kSlots copies old. What a slot had before is kept: freeing pinned memory waits for
  // every device, and one may be waiting for this thread's next collective.
  void copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

 private:
  static constexpr std::size_t kSlots = 8;
  struct Slot {
    PinnedMemory memory;
    std::size_t bytes = 0;
    EventHandle copied;
  };
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
  std::vector<PinnedMemory> retired_;
};

}  // namespace dp::kernels::cuda
