#include "kernels/cuda/comm/cuda_link.h"

#include <string>

#include "dp/error.h"
#include "kernels/cuda/comm/peers.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/host/spin.h"

namespace dp::kernels::cuda {
namespace {

// Waits until `count` exceeds `number`. Throws Aborted when the flag is set; it may be null.
void await(const std::atomic<std::uint64_t>& count, std::uint64_t number, const AbortFlag* abort) {
  Spinner spinner;
  while (count.load(std::memory_order_acquire) <= number) {
    if (abort != nullptr && abort->load(std::memory_order_relaxed)) throw Aborted();
    spinner.wait();
  }
}

}  // namespace

CudaLink::CudaLink(CudaContext& sender, CudaContext& receiver) : sender_(sender), receiver_(receiver) {
  direct_ = reads(connect({receiver.device().index, sender.device().index})[0][1]);
  sender_.bind_thread();
  for (Slot& slot : slots_) slot.sent = make_event_handle();
  receiver_.bind_thread();
  for (Slot& slot : slots_) slot.taken = make_event_handle();
}

void CudaLink::reserve(std::size_t bytes) {
  sender_.bind_thread();
  for (Slot& slot : slots_) {
    if (slot.bytes >= bytes) continue;
    if (direct_)
      slot.memory = device_memory(bytes);
    else
      slot.pinned = pinned_memory(bytes);
    slot.bytes = bytes;
  }
}

void CudaLink::send(const void* data, std::size_t bytes, Stream& stream) {
  const std::uint64_t number = sent_.load(std::memory_order_relaxed);
  if (number >= kSlots) await(received_, number - kSlots, sender_.abort());
  sender_.bind_thread();
  CudaStream& own = of_cuda(stream);
  Slot& to = slot(number);
  if (to.bytes < bytes)
    throw Error(ErrorCode::device,
                "a pipeline stage sends " + std::to_string(bytes) + " bytes, for which no memory was reserved");
  if (number >= kSlots) own.wait(to.taken.get());
  check(cudaMemcpyAsync(place(to), data, bytes, cudaMemcpyDefault, own.work()), "copying a tensor of a pipeline stage");
  own.count_bytes(bytes);
  to.used = bytes;
  check(cudaEventRecord(to.sent.get(), own.native()), "recording an event");
  sent_.store(number + 1, std::memory_order_release);
}

void CudaLink::receive(void* data, std::size_t bytes, Stream& stream) {
  const std::uint64_t number = received_.load(std::memory_order_relaxed);
  await(sent_, number, receiver_.abort());
  receiver_.bind_thread();
  CudaStream& own = of_cuda(stream);
  Slot& from = slot(number);
  if (from.used != bytes)
    throw Error(ErrorCode::device, "a pipeline stage expects " + std::to_string(bytes) +
                                       " bytes, but its neighbour has sent " + std::to_string(from.used));
  own.wait(from.sent.get());
  check(cudaMemcpyAsync(data, place(from), bytes, cudaMemcpyDefault, own.work()),
        "copying a tensor of a pipeline stage");
  check(cudaEventRecord(from.taken.get(), own.native()), "recording an event");
  received_.store(number + 1, std::memory_order_release);
}

}  // namespace dp::kernels::cuda
