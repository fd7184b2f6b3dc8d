#include "kernels/device/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <set>
#include <string>
#include <utility>

#include "dp/error.h"

namespace dp::kernels::cuda {
namespace {

thread_local LaunchNames* launch_names = nullptr;

std::string extent(const dim3& size) {
  return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
}

thread_local int loadings = 0;

}  // namespace

KernelLoading::KernelLoading() { ++loadings; }
KernelLoading::~KernelLoading() { --loadings; }
bool KernelLoading::active() { return loadings > 0; }

void load_kernel(const void* function, const Launch& launch) {
  cudaFuncAttributes attributes{};
  check_launch(cudaFuncGetAttributes(&attributes, function), launch);
}

std::string describe(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

std::string current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? "cuda:" + std::to_string(device) : "cuda";
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears a non-sticky error, which the next call would return again
  throw Error(ErrorCode::device, std::string(what) + " failed on " + current_device() + ": " + describe(error));
}

LaunchNames::LaunchNames() { launch_names = this; }
LaunchNames::~LaunchNames() { launch_names = nullptr; }

void check_launch(cudaError_t error, const Launch& launch) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ErrorCode::device, std::string("kernel ") + launch.kernel + " (grid " + extent(launch.grid) + ", block " +
                                     extent(launch.block) + ", " + std::to_string(launch.shared_bytes) +
                                     " bytes of shared memory) failed on " + current_device() + ": " + describe(error));
}

void check_launched(cudaError_t error, const Launch& launch) {
  if (launch_names != nullptr) launch_names->names.emplace_back(launch.kernel);
  check_launch(error, launch);
}

// Sets the device's maximum, not this launch's size: the limit belongs to the function, and another thread may be about
// to launch it with more.
void allow_shared(const void* function, const Launch& where) {
  constexpr std::size_t kUnasked = 32 * 1024;  // without opt-in, static and dynamic memory together may use 48 KiB
  if (where.shared_bytes <= kUnasked) return;
  thread_local std::set<std::pair<int, const void*>> allowed;
  int device = 0, most = 0;
  check_launch(cudaGetDevice(&device), where);
  if (allowed.contains({device, function})) return;
  cudaFuncAttributes attributes{};
  check_launch(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), where);
  check_launch(cudaFuncGetAttributes(&attributes, function), where);
  check_launch(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    most - static_cast<int>(attributes.sharedSizeBytes)),
               where);
  allowed.insert({device, function});
}

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
  const cudaError_t error = cudaGetDevice(&device);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return {};
  }
  check(error, "reading the current device");
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
