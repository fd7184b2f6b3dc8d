// Owning handles for CUDA objects.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <utility>

namespace dp::kernels::cuda {

// Set when work on a device did not end after an abort. From then on no handle is destroyed: destruction can wait for
// that work forever. The process can no longer use its devices.
inline std::atomic<bool> handles_abandoned{false};

// Destroys the handle in the destructor and ignores errors. Move construction empties the source; move assignment
// swaps.
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
StreamHandle make_urgent_stream_handle();  // highest priority: its kernels start before those of other streams
EventHandle make_event_handle();           // without timing
EventHandle make_timed_event_handle();
DeviceMemory device_memory(std::size_t bytes);  // Error(device) states the bytes requested and free
// Zeroed counters for is_last_block(). One op owns them; it runs on one stream at a time. Empty if there is no device,
// as nothing can run then.
DeviceMemory zeroed_counters(unsigned count);
PinnedMemory pinned_memory(std::size_t bytes);  // page-locked; same address on the host and on every device

}  // namespace dp::kernels::cuda
