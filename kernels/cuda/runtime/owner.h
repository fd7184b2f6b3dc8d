// One owner for every kind of CUDA handle.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <utility>

namespace dp::kernels::cuda {

// Set when work on a device did not end although everything was told to stop: from then on handles are not destroyed, since to destroy
// one can wait for that work for ever. The process can not use its devices any more.
inline std::atomic<bool> handles_abandoned{false};

// Destroys on the way out; errors of that are not reported. Empty after a move.
template <typename Handle, cudaError_t (*Destroy)(Handle)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != Handle{} && !handles_abandoned) Destroy(handle_);
  }

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Handle{}; }

 private:
  Handle handle_{};
};

using StreamHandle = Owner<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Owner<cudaEvent_t, cudaEventDestroy>;
using DeviceMemory = Owner<void*, cudaFree>;
using GraphHandle = Owner<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Owner<cudaGraphExec_t, cudaGraphExecDestroy>;
using PinnedMemory = Owner<void*, cudaFreeHost>;

StreamHandle make_stream_handle();
StreamHandle
make_urgent_stream_handle();      // its kernels go before those of other streams that wait for room on the device
EventHandle make_event_handle();  // without timing
EventHandle make_timed_event_handle();
DeviceMemory device_memory(std::size_t bytes);  // Error(device) with bytes asked and free
// Zeros, for is_last_block(), that belong to one op: it runs on one stream at a time. Empty where there is no device, hence no run.
DeviceMemory zeroed_counters(unsigned count);
PinnedMemory pinned_memory(std::size_t bytes);  // host memory that every device reaches at the same address

}  // namespace dp::kernels::cuda
