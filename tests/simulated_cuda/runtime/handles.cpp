#include "simulated_cuda/runtime/handles.h"

#include "simulated_cuda/runtime/errors.h"

namespace dp::simt {

Stream* as_stream(cudaStream_t handle, const char* call) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    misused(cudaErrorInvalidResourceHandle, call,
            "the default stream orders what nobody asked to be ordered; use a stream of your own");
    return nullptr;
  }
  auto* const stream = reinterpret_cast<Stream*>(handle);
  if (stream->alive()) return stream;
  misused(cudaErrorInvalidResourceHandle, call, "the stream has been destroyed");
  return nullptr;
}

Event* as_event(cudaEvent_t handle, const char* call) {
  auto* const event = reinterpret_cast<Event*>(handle);
  if (event != nullptr && event->alive) return event;
  misused(cudaErrorInvalidResourceHandle, call, "the event has been destroyed, or never made");
  return nullptr;
}

}  // namespace dp::simt
