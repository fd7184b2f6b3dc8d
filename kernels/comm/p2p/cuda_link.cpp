#include "kernels/comm/p2p/cuda_link.h"

#include <optional>
#include <string>

#include "dp/error.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/device/backend.h"
#include "kernels/device/cuda/check.h"
#include "kernels/device/host/spin.h"

namespace dp::kernels::cuda {

CudaLink::CudaLink(CudaContext& sender, CudaContext& receiver) : sender_(sender), receiver_(receiver) {
  direct_ = reads(connect({receiver.device().index, sender.device().index})[0][1]);
  sender_.bind_thread();
  for (Slot& slot : slots_) slot.sent = make_event_handle();
  receiver_.bind_thread();
  for (Slot& slot : slots_) slot.taken = make_event_handle(), slot.emptied = make_event_handle();
  fetch_ = receiver_.make_stream(StreamUse::communication);
}

void CudaLink::reserve(std::size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.bytes >= bytes) continue;
    receiver_.bind_thread();
    slot.arrived = device_memory(bytes);
    sender_.bind_thread();
    if (direct_)
      slot.memory = device_memory(bytes);
    else
      slot.pinned = pinned_memory(bytes);
    slot.bytes = bytes;
  }
}

void CudaLink::reset() {
  sent_.store(0, std::memory_order_relaxed);
  received_.store(0, std::memory_order_relaxed);
}

void CudaLink::await(const std::atomic<std::uint64_t>& count, std::uint64_t number, End end) {
  if (count.load(std::memory_order_acquire) > number) return;
  const AbortFlag* const abort = (end == End::sender ? sender_ : receiver_).abort();
  CaptureTurn* const turn = turns_[static_cast<std::size_t>(end)];
  std::optional<CaptureTurn::Passed> passed;
  if (turn != nullptr) passed.emplace(*turn);
  Spinner spinner;
  while (count.load(std::memory_order_acquire) <= number) {
    if (abort != nullptr && abort->load(std::memory_order_relaxed)) throw Aborted();
    if (turn != nullptr && turn->given_up()) throw CaptureTurn::GivenUp();
    spinner.wait();
  }
}

void CudaLink::send(const void* data, std::size_t bytes, Stream& stream) {
  const std::uint64_t number = sent_.load(std::memory_order_relaxed);
  if (number >= kSlots) await(received_, number - kSlots, End::sender);
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
  await(sent_, number, End::receiver);
  receiver_.bind_thread();
  CudaStream &own = of_cuda(stream), &fetch = of_cuda(*fetch_);
  Slot& from = slot(number);
  if (from.used != bytes)
    throw Error(ErrorCode::device, "a pipeline stage expects " + std::to_string(bytes) +
                                       " bytes, but its neighbour has sent " + std::to_string(from.used));
  fetch.wait(from.sent.get());
  if (number >= kSlots) fetch.wait(from.emptied.get());
  check(cudaMemcpyAsync(from.arrived.get(), place(from), bytes, cudaMemcpyDefault, fetch.native()),
        "copying a tensor of a pipeline stage");
  check(cudaEventRecord(from.taken.get(), fetch.native()), "recording an event");
  own.wait(from.taken.get());
  check(cudaMemcpyAsync(data, from.arrived.get(), bytes, cudaMemcpyDefault, own.work()),
        "copying a tensor of a pipeline stage");
  check(cudaEventRecord(from.emptied.get(), own.native()), "recording an event");
  received_.store(number + 1, std::memory_order_release);
}

}  // namespace dp::kernels::cuda
