#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "simulated_cuda/api/kernel_call.h"
#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/emulator/launch_bounds.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/handles.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/capture.h"
#include "simulated_cuda/streams/functions.h"

namespace dp::simt {
namespace {

// Lazy loading: a device loads a kernel at its first launch or attribute query on that device.
bool is_loaded_now(int index, const void* function) {
  const QuietLock lock(device(index).mutex);
  return device(index).loaded.insert(function).second;
}

}  // namespace

namespace {

// The reason why the function cannot be launched with this block size; empty if it can. With launch bounds, nvcc limits
// the registers so that the block fits. Without them a thread may have 255 registers, and a multiprocessor has enough
// for 256 threads.
std::string check_threads(const Grid& grid, const FunctionLimits& limits) {
  constexpr unsigned kAlways = 256;
  const unsigned threads = grid.block.x * grid.block.y * grid.block.z;
  if (!kKnowsLaunchBounds || threads <= static_cast<unsigned>(limits.most_threads)) return {};
  const std::string text = "a block of " + std::to_string(threads) + " threads; ";
  if (limits.most_threads > 0) return text + "its launch bounds are " + std::to_string(limits.most_threads);
  return threads <= kAlways ? "" : text + "without launch bounds it may have too many registers for more than 256";
}

std::string check_shared(const Grid& grid, const FunctionLimits& limits, int device) {
  if (grid.shared_bytes <= limits.dynamic_limit(device) &&
      grid.shared_bytes + limits.static_bytes <= limits.shared_limit(device))
    return {};
  return std::to_string(grid.shared_bytes) + " bytes of dynamic shared memory, " + std::to_string(limits.static_bytes) +
         " static ones; it may have " + std::to_string(limits.dynamic_limit(device)) + " dynamic ones, and " +
         std::to_string(limits.shared_limit(device)) + " of both" +
         (limits.allowed[device] < 0 ? ", until cudaFuncSetAttribute allows more on " + device_name(device) : "");
}

}  // namespace

cudaError_t enqueue(const KernelCall& call) {
  Stream* const stream = as_stream(call.stream, call.grid.kernel);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  if (stream->device() != current_device())
    return misused(cudaErrorInvalidResourceHandle, call.grid.kernel,
                   "launched on " + stream->name() + " while " + device_name(current_device()) + " is current");
  const auto refuse = [&](cudaError_t error, const std::string& problem) {
    return misused(error, call.grid.kernel, "cannot be launched with " + problem);
  };
  const FunctionLimits limits = limits_of(call.function);
  if (const std::string problem = check_shape(call.grid); !problem.empty())
    return refuse(cudaErrorInvalidConfiguration, problem);
  if (const std::string problem = check_threads(call.grid, limits); !problem.empty())
    return refuse(cudaErrorLaunchOutOfResources, problem);
  if (const std::string problem = check_shared(call.grid, limits, stream->device()); !problem.empty())
    return refuse(cudaErrorInvalidValue, problem);
  if (is_loaded_now(stream->device(), call.function)) may_block(std::string("loading kernel ") + call.grid.kernel);
  KernelWork work{.grid = call.grid,
                  .function = call.function,
                  .pointers = call.pointers,
                  .pointer_count = call.pointer_count,
                  .arguments = {}};
  work.grid.device = stream->device();
  work.grid.shared_limit = limits.shared_limit(stream->device());
  std::memcpy(work.arguments.data(), call.arguments, call.argument_bytes);
  return submit(*stream, work, call.grid.kernel);
}

}  // namespace dp::simt

using namespace dp::simt;

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (function == nullptr) return failed(cudaErrorInvalidValue);
  may_block("cudaFuncSetAttribute");
  if (const cudaError_t error = sticky_error(current_device())) return error;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value + limits_of(function).static_bytes > simulation().most_shared_memory())
    return failed(cudaErrorInvalidValue);
  allow_dynamic(function, current_device(), value);
  return cudaSuccess;
}

// The number of registers is not set: only nvcc determines it. Static shared memory is known after the first block has
// run.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (function == nullptr) return failed(cudaErrorInvalidValue);
  if (is_loaded_now(current_device(), function)) may_block("loading a kernel that is asked about");
  const FunctionLimits limits = limits_of(function);
  *attributes = {};
  attributes->sharedSizeBytes = limits.static_bytes;
  attributes->maxThreadsPerBlock = limits.most_threads > 0 ? limits.most_threads : 1024;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(limits.dynamic_limit(current_device()));
  attributes->binaryVersion = simulation().compute_capability;
  attributes->ptxVersion = std::min(simulation().compute_capability, simulation().compiled_for);
  return sticky_error(current_device());
}
