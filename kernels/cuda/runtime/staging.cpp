#include "kernels/cuda/runtime/staging.h"

#include <cstring>
#include <utility>

#include "kernels/cuda/runtime/check.h"

namespace dp::kernels::cuda {

void Staging::prepare() { out_ = pinned_memory(kOut); }

// Requires that the slot's last copy is done.
void Staging::grow(Slot& slot, std::size_t bytes) {
  if (!slot.copied) slot.copied = make_event_handle();
  if (slot.bytes >= bytes) return;
  PinnedMemory larger = pinned_memory(bytes);
  if (slot.memory) retired_.push_back(std::move(slot.memory));
  slot.memory = std::move(larger);
  slot.bytes = bytes;
}

void Staging::reserve(std::size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.copied) check(cudaEventSynchronize(slot.copied.get()), "waiting for a copy to the device");
    grow(slot, bytes);
  }
}

void Staging::copy_in(void* dst, const void* src, std::size_t bytes, cudaStream_t stream) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  if (slot.copied) check(cudaEventSynchronize(slot.copied.get()), "waiting for a copy to the device");
  grow(slot, bytes);
  std::memcpy(slot.memory.get(), src, bytes);
  check(cudaMemcpyAsync(dst, slot.memory.get(), bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
  check(cudaEventRecord(slot.copied.get(), stream), "recording an event");
}

}  // namespace dp::kernels::cuda
