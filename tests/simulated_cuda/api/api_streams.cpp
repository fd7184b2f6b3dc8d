#include <cuda_runtime_api.h>

#include <string_view>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/fault_handler.h"
#include "simulated_cuda/runtime/handles.h"
#include "simulated_cuda/streams/capture.h"

using namespace dp::simt;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int priority) {
  install_fault_handler();
  may_block("cudaStreamCreate");
  if (const cudaError_t error = sticky_error(current_device())) return error;
  *stream = handle_of(make_stream(current_device(), priority));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, kLowestPriority);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  if (const cudaError_t error = injected_error()) return error;
  *lowest = kLowestPriority;
  *highest = kHighestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Stream* const stream = as_stream(handle, "cudaStreamGetPriority");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  *priority = stream->priority();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaStreamDestroy");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  destroy(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaStreamSynchronize");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_if_captured(*stream, "cudaStreamSynchronize")) return error;
  if (const cudaError_t error = refuse_while_capturing("cudaStreamSynchronize")) return error;
  stream->wait_until(stream->enqueued());
  stream->observe();
  return sticky_error(stream->device());
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaStreamQuery");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_if_captured(*stream, "cudaStreamQuery")) return error;
  if (const cudaError_t error = refuse_while_capturing("cudaStreamQuery")) return error;
  if (!stream->reached(stream->enqueued())) return cudaErrorNotReady;
  stream->observe();
  return sticky_error(stream->device());
}

cudaError_t dp::simt::enqueue(cudaStream_t handle, const ForeignWork& work) {
  Stream* const stream = as_stream(handle, work.name);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (std::string_view(work.name) == "NCCL") log_exchange();
  if (const cudaError_t error = submit(*stream, work, work.name)) return error;
  return sticky_error(stream->device());
}

int dp::simt::device_of(cudaStream_t handle) {
  const Stream* const stream = as_stream(handle, "device_of");
  return stream == nullptr ? -1 : stream->device();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  Stream* const stream = as_stream(handle, "cudaLaunchHostFunc");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = submit(*stream, CallWork{function, data}, "cudaLaunchHostFunc")) return error;
  return sticky_error(stream->device());
}
