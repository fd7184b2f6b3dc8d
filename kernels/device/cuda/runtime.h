// The CUDA runtime: its errors become dp::Error, launches are checked, and its objects have owners.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace dp::kernels::cuda {

// Converts errors of the CUDA runtime to dp::Error.

// Throws Error(device) "what failed on cuda:k: cudaErrorX (text)" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);
std::string describe(cudaError_t error);  // "cudaErrorX (text)"
std::string current_device();             // "cuda:1"

// Records the names of the kernels that this thread launches. At most one object per thread.
class LaunchNames {
 public:
  LaunchNames();
  ~LaunchNames();
  LaunchNames(const LaunchNames&) = delete;
  LaunchNames& operator=(const LaunchNames&) = delete;

  std::vector<std::string> names;
};

// Checks for failures outside a context's streams that invalidate its work. They run after every wait for the streams.
class Guard {
 public:
  virtual ~Guard() = default;
  virtual void check() = 0;  // throws Aborted or Error(device) if the work is invalid
};

// The guards of one context; not owned.
using Guards = std::vector<Guard*>;

inline void check_all(const Guards& guards) {
  for (Guard* const guard : guards) guard->check();
}

// Launch parameters and checks. launch() itself is in native/device_code.h, its counterpart in tests/simulated_cuda.
struct Launch {
  const char* kernel;  // name for error messages
  dim3 grid;
  dim3 block;
  cudaStream_t stream;
  std::size_t shared_bytes = 0;  // dynamic
};

// Throws Error(device) naming the kernel, its launch and the device, unless `error` is cudaSuccess.
void check_launch(cudaError_t error, const Launch& launch);
void check_launched(cudaError_t error, const Launch& launch);  // for cudaLaunchKernel; also adds to LaunchNames

// While a thread holds one, launch() only loads the kernel on the current device. With lazy module loading
// (kernels/device/plugin.cpp) CUDA loads a kernel at its first use. Loading can wait for work on the device. A
// collective on the device may wait for this thread: a deadlock (docs/decisions/0028).
class KernelLoading {
 public:
  KernelLoading();
  ~KernelLoading();
  KernelLoading(const KernelLoading&) = delete;
  KernelLoading& operator=(const KernelLoading&) = delete;

  static bool active();
};
void load_kernel(const void* function, const Launch& launch);

// Raises the function's limit of dynamic shared memory to the current device's maximum if the launch needs more than 32
// KiB.
void allow_shared(const void* function, const Launch& where);

constexpr unsigned blocks_for(long long count, long long per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// Owning handles for CUDA objects.

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
