#include "kernels/device/cuda/owner.h"

#include <string>

#include "dp/error.h"
#include "kernels/device/cuda/check.h"

namespace dp::kernels::cuda {
namespace {

EventHandle event_handle(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "creating an event");
  return EventHandle(event);
}

}  // namespace

StreamHandle make_stream_handle() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return StreamHandle(stream);
}

StreamHandle make_urgent_stream_handle() {
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "reading the stream priorities");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "creating a stream");
  return StreamHandle(stream);
}

EventHandle make_event_handle() { return event_handle(cudaEventDisableTiming); }
EventHandle make_timed_event_handle() { return event_handle(cudaEventDefault); }

DeviceMemory device_memory(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(ErrorCode::device, "out of memory on " + current_device() + ": " + std::to_string(bytes) +
                                       " bytes requested, " + std::to_string(free) +
                                       " free; use a smaller batch or fewer replicas on this GPU");
  }
  check(error, "allocating memory");
  return DeviceMemory(memory);
}

DeviceMemory zeroed_counters(unsigned count) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  DeviceMemory memory = device_memory(count * sizeof(unsigned));
  const StreamHandle stream = make_stream_handle();
  check(cudaMemsetAsync(memory.get(), 0, count * sizeof(unsigned), stream.get()), "clearing new memory");
  check(cudaStreamSynchronize(stream.get()), "clearing new memory");
  return memory;
}

PinnedMemory pinned_memory(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "allocating pinned memory");
  return PinnedMemory(memory);
}

}  // namespace dp::kernels::cuda
