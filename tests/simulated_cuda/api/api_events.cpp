#include <cuda_runtime_api.h>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/handles.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/capture.h"

using namespace dp::simt;

namespace {

struct Place {
  Stream* stream;
  std::uint64_t position;
};
// The latest record. The program must order threads that record and use the same event. Otherwise it depends on timing
// which record is the latest.
Place latest(Event& event) {
  announce_read(&event.token, 1);
  const QuietLock lock(event.mutex);
  return {event.stream, event.position};
}

void observe(Event& event) {
  acquire(&event.token);
  if (detector != nullptr) detector->host_waited_for_event(&event);
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  may_block("cudaEventCreate");
  if (const cudaError_t error = sticky_error(current_device())) return error;
  *event = handle_of(make_event(current_device(), (flags & cudaEventDisableTiming) == 0));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  Event* const event = as_event(handle, "cudaEventDestroy");
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  destroy(*event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  Event* const event = as_event(handle, "cudaEventRecord");
  Stream* const stream = as_stream(stream_handle, "cudaEventRecord");
  if (event == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->device != stream->device())
    return misused(cudaErrorInvalidResourceHandle, "cudaEventRecord",
                   "an event of " + device_name(event->device) + " on " + stream->name());
  announce_write(&event->token, 1);
  cudaError_t result = cudaSuccess;
  if (record_captured(*stream, *event, result)) return result != cudaSuccess ? result : injected_error();
  // Without the lock: if the stream's queue is full, its thread may have to record this event to free a slot.
  const std::uint64_t position = stream->enqueue(RecordWork{event});
  const QuietLock lock(event->mutex);
  event->position = position;
  event->stream = stream;
  return sticky_error(stream->device());
}

namespace {

// Counts down to the wait that fault injection skips. All waits of a device come from one thread.
bool is_left_out(const Stream& stream, const Event& event) {
  LeftOutWait& wait = simulation().left_out_wait;
  if (stream.device() != wait.device || (event.device != stream.device()) != wait.for_other_device) return false;
  return wait.number > 0 && --wait.number == 0;
}

}  // namespace

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned int) {
  Event* const event = as_event(handle, "cudaStreamWaitEvent");
  Stream* const stream = as_stream(stream_handle, "cudaStreamWaitEvent");
  if (event == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (is_left_out(*stream, *event)) return cudaSuccess;
  if (event->device != stream->device()) log_exchange();
  cudaError_t result = cudaSuccess;
  announce_read(&event->token, 1);
  if (wait_captured(*stream, *event, result)) return result != cudaSuccess ? result : injected_error();
  const Place place = latest(*event);
  if (place.stream != nullptr) stream->enqueue(WaitWork{place.stream, place.position, event});
  return sticky_error(stream->device());
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Event* const event = as_event(handle, "cudaEventSynchronize");
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_if_captured(*event, "cudaEventSynchronize")) return error;
  if (const cudaError_t error = refuse_while_capturing("cudaEventSynchronize")) return error;
  const Place place = latest(*event);
  if (place.stream != nullptr) {
    place.stream->wait_until(place.position);
    observe(*event);
  }
  return sticky_error(event->device);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Event* const event = as_event(handle, "cudaEventQuery");
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = refuse_if_captured(*event, "cudaEventQuery")) return error;
  if (const cudaError_t error = refuse_while_capturing("cudaEventQuery")) return error;
  const Place place = latest(*event);
  if (place.stream != nullptr) {
    if (!place.stream->reached(place.position)) return cudaErrorNotReady;
    if (!event->timing) observe(*event);  // a query for timing must not hide a missing wait
  }
  return sticky_error(event->device);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  Event* const start = as_event(start_handle, "cudaEventElapsedTime");
  Event* const end = as_event(end_handle, "cudaEventElapsedTime");
  if (start == nullptr || end == nullptr) return cudaErrorInvalidResourceHandle;
  for (Event* const event : {start, end})
    if (const cudaError_t error = refuse_if_captured(*event, "cudaEventElapsedTime")) return error;
  const Place from = latest(*start), to = latest(*end);
  if (!start->timing || !end->timing || start->device != end->device || from.stream == nullptr || to.stream == nullptr)
    return misused(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime",
                   "needs two recorded events with timing, of one device");
  if (!from.stream->reached(from.position) || !to.stream->reached(to.position)) return failed(cudaErrorNotReady);
  const QuietLock lock(start->mutex);
  std::chrono::steady_clock::time_point begin = start->time;
  if (start != end) {
    const QuietLock end_lock(end->mutex);
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin).count();
  } else {
    *milliseconds = 0;
  }
  return sticky_error(start->device);
}
