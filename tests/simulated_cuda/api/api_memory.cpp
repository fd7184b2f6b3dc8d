#include <cuda_runtime_api.h>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/fault_handler.h"
#include "simulated_cuda/runtime/pinned_memory.h"
#include "simulated_cuda/simulation.h"
#include "simulated_cuda/streams/capture.h"
#include "simulated_cuda/streams/stream.h"

using namespace dp::simt;

namespace {

// Counts down to the call that fault injection makes fail.
bool is_to_fail(int& countdown) { return countdown > 0 && --countdown == 0; }

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  install_fault_handler();
  may_block("cudaMalloc");
  const int index = current_device();
  if (const cudaError_t error = refuse_while_capturing("cudaMalloc")) return error;
  if (const cudaError_t error = sticky_error(index)) return error;
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (is_to_fail(simulation().fail_allocation)) return unreported(cudaErrorMemoryAllocation);
  *memory = device(index).memory.allocate(bytes, simulation().device_memory);
  return *memory == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

// Synchronises the device, as CUDA does.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  may_block("cudaFree");
  const int index = owner_of(memory);
  if (index < 0) return misused(cudaErrorInvalidValue, "cudaFree", "this is no device memory");
  if (const cudaError_t error = refuse_while_capturing("cudaFree")) return error;
  wait_for_device(index);
  bool damaged = false;
  const std::ptrdiff_t bytes = device(index).memory.release(memory, damaged);
  if (bytes < 0) return misused(cudaErrorInvalidValue, "cudaFree", "no allocation begins there, or it has been freed");
  if (damaged)
    report("out-of-bounds write behind an allocation of " + std::to_string(bytes) + " bytes on " + device_name(index));
  return sticky_error(current_device());
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  may_block("cudaHostAlloc");
  if (const cudaError_t error = refuse_while_capturing("cudaHostAlloc")) return error;
  if (const cudaError_t error = sticky_error(current_device())) return error;
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (is_to_fail(simulation().fail_host_allocation)) return unreported(cudaErrorMemoryAllocation);
  *memory = allocate_pinned(bytes);
  return *memory == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, cudaHostAllocDefault); }

// CUDA may wait for all devices of the process. may_block() covers that. It waits only for the current device here,
// because threads can play the part of processes, which must not wait for each other's devices.
cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  may_block("cudaFreeHost");
  if (const cudaError_t error = refuse_while_capturing("cudaFreeHost")) return error;
  wait_for_device(current_device());
  if (!release_pinned(memory))
    return misused(cudaErrorInvalidValue, "cudaFreeHost", "this is no pinned memory, or it has been freed");
  return sticky_error(current_device());
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = simulation().device_memory;
  *free = *total - device(current_device()).memory.used();
  return sticky_error(current_device());
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  void* const plain = const_cast<void*>(address);
  Allocation found;
  if (const int owner = owner_of(address); owner >= 0 && device(owner).memory.find(address, found)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = owner;
    attributes->devicePointer = plain;
  } else if (is_pinned(address)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = plain;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;  // cudaInvalidDeviceId
  }
  return sticky_error(current_device());
}
