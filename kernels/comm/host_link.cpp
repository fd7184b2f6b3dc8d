#include "kernels/comm/host_link.h"

#include <cstring>
#include <string>

#include "kernels/host/host_stream.h"

namespace dp::kernels {

void HostLink::reserve(std::size_t bytes) {
  for (Slot& slot : slots_)
    if (slot.memory == nullptr || slot.memory->bytes() < bytes) slot.memory = sender_.allocate(bytes);
}

bool HostLink::put(const void* data, std::size_t bytes) {
  const std::uint64_t number = sent_.load(std::memory_order_relaxed);
  if (number - received_.load(std::memory_order_acquire) == kSlots) return false;
  Slot& to = slot(number);
  if (to.memory == nullptr || to.memory->bytes() < bytes)
    throw Error(ErrorCode::device,
                "a pipeline stage sends " + std::to_string(bytes) + " bytes, for which no memory was reserved");
  std::memcpy(to.memory->data(), data, bytes);
  to.bytes = bytes;
  sent_.store(number + 1, std::memory_order_release);
  return true;
}

bool HostLink::take(void* data, std::size_t bytes) {
  const std::uint64_t number = received_.load(std::memory_order_relaxed);
  if (sent_.load(std::memory_order_acquire) == number) return false;
  const Slot& from = slot(number);
  if (from.bytes != bytes)
    throw Error(ErrorCode::device, "a pipeline stage expects " + std::to_string(bytes) +
                                       " bytes, but its neighbour has sent " + std::to_string(from.bytes));
  std::memcpy(data, from.memory->data(), bytes);
  received_.store(number + 1, std::memory_order_release);
  return true;
}

void HostLink::send(const void* data, std::size_t bytes, Stream& stream) {
  static_cast<HostStream&>(stream).submit(Task([this, data, bytes] { return put(data, bytes); }));
}

void HostLink::receive(void* data, std::size_t bytes, Stream& stream) {
  static_cast<HostStream&>(stream).submit(Task([this, data, bytes] { return take(data, bytes); }));
}

}  // namespace dp::kernels
