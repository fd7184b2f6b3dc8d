// Properties of a simulated device. Sets only fields that both CUDA 12 and CUDA 13 have.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/simulation.h"

using dp::simt::failed;
using dp::simt::simulation;

namespace {
constexpr int kMultiprocessors = 4, kThreadsPerMultiprocessor = 2048, kRegisters = 65536;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (const cudaError_t error = dp::simt::injected_error()) return error;
  if (index < 0 || index >= simulation().devices) return failed(cudaErrorInvalidDevice);
  *properties = {};
  const auto& visible = simulation().visible;
  const int number =
      static_cast<std::size_t>(index) < visible.size() ? visible[static_cast<std::size_t>(index)] : index;
  std::snprintf(properties->name, sizeof properties->name, "simulated GPU %d", number);
  properties->uuid.bytes[0] = static_cast<char>(number + 1);
  properties->totalGlobalMem = simulation().device_memory;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = simulation().most_shared_memory();
  properties->sharedMemPerMultiprocessor = simulation().most_shared_memory() + 1024;
  properties->reservedSharedMemPerBlock = 1024;
  properties->regsPerBlock = properties->regsPerMultiprocessor = kRegisters;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = simulation().compute_capability / 10;
  properties->minor = simulation().compute_capability % 10;
  properties->multiProcessorCount = kMultiprocessors;
  properties->pciBusID = index + 1;
  properties->asyncEngineCount = 2;
  properties->unifiedAddressing = 1;
  properties->concurrentKernels = 1;
  properties->streamPrioritiesSupported = 1;
  properties->canMapHostMemory = 1;
  properties->memoryBusWidth = 4096;
  properties->l2CacheSize = static_cast<int>(simulation().l2_cache);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(properties.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(properties.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = properties.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrClockRate: *value = 1'500'000; break;
    case cudaDevAttrMemoryClockRate: *value = 1'500'000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = properties.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrAsyncEngineCount: *value = properties.asyncEngineCount; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrPciBusId: *value = properties.pciBusID; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 0; break;
    default: *value = 0; break;
  }
  return cudaSuccess;
}
