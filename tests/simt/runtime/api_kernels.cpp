#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "simt/driver_lock.h"
#include "simt/runtime/capture.h"
#include "simt/runtime/devices.h"
#include "simt/runtime/errors.h"
#include "simt/runtime/handles.h"
#include "simt/runtime/kernel_call.h"
#include "simt/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

// Modules are loaded lazily: a kernel comes to a device when it is first launched there, or asked about.
bool is_loaded_now(int index, const void* function) {
  const QuietLock lock(device(index).mutex);
  return device(index).loaded.insert(function).second;
}

}  // namespace

cudaError_t enqueue(const KernelCall& call) {
  Stream* const stream = as_stream(call.stream, call.grid.kernel);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  if (stream->device() != current_device())
    return misused(cudaErrorInvalidResourceHandle, call.grid.kernel,
                   "launched on " + stream->name() + " while " + device_name(current_device()) + " is current");
  if (const std::string problem = check_shape(call.grid); !problem.empty())
    return misused(cudaErrorInvalidConfiguration, call.grid.kernel, "can not be launched with " + problem);
  if (is_loaded_now(stream->device(), call.function)) may_block(std::string("loading kernel ") + call.grid.kernel);
  KernelWork work{.grid = call.grid, .pointers = call.pointers, .pointer_count = call.pointer_count, .arguments = {}};
  work.grid.device = stream->device();
  std::memcpy(work.arguments.data(), call.arguments, call.argument_bytes);
  return submit(*stream, work, call.grid.kernel);
}

}  // namespace dp::simt

using namespace dp::simt;

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (function == nullptr) return failed(cudaErrorInvalidValue);
  may_block("cudaFuncSetAttribute");
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize &&
      (value < 0 || static_cast<std::size_t>(value) > simulation().shared_memory_per_block))
    return failed(cudaErrorInvalidValue);
  return sticky_error(current_device());
}

// The simulation knows no registers: what can be said is what every kernel has.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (function == nullptr) return failed(cudaErrorInvalidValue);
  if (is_loaded_now(current_device(), function)) may_block("loading a kernel that is asked about");
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(simulation().shared_memory_per_block);
  attributes->binaryVersion = simulation().compute_capability;
  attributes->ptxVersion = std::min(simulation().compute_capability, simulation().compiled_for);
  return sticky_error(current_device());
}
