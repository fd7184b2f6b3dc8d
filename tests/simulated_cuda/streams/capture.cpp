#include "simulated_cuda/streams/capture.h"

#include <algorithm>
#include <chrono>

#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/handles.h"
#include "simulated_cuda/runtime/pinned_memory.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/launch_log.h"

namespace dp::simt {
namespace {

struct Captures {
  std::mutex mutex;  // of all captures
  std::vector<std::shared_ptr<Capture>> running;
};
Captures& captures() {
  static auto& all = *new Captures;
  return all;
}

std::atomic<std::ptrdiff_t> graphs{0};

cudaError_t spoil(Capture& capture, cudaError_t error, const char* call, const std::string& what) {
  capture.invalid = true;
  return misused(error, call, what);
}

// One thread at a time may record to a graph: graph construction is not thread-safe.
class Recording {
 public:
  explicit Recording(Capture& capture) : capture_(capture) {
    announce_write(&capture.token, 1);
    if (capture.busy.exchange(true)) report("two threads record one graph at the same time");
    if (simulation().delays) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  ~Recording() { capture_.busy = false; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  Capture& capture_;
};

void move(Capture& capture, Stream& stream) {
  capture.moves.push_back(stream.last_moves());
  stream.last_moves() = {capture.moves.size() - 1};
}

void add(Capture& capture, Stream& stream, const Work& work) {
  capture.graph->nodes.push_back({work, &stream, stream.heads()});
  held_by_graph(work, 1);
  stream.heads() = {capture.graph->nodes.size() - 1};
  move(capture, stream);
}

void merge(std::vector<std::size_t>& heads, const std::vector<std::size_t>& more) {
  for (const std::size_t node : more)
    if (std::find(heads.begin(), heads.end(), node) == heads.end()) heads.push_back(node);
}

// Whether the origin's last item follows the items of all streams. A stream that only waits for the capture must rejoin
// it, too.
bool all_joined(const Capture& capture) {
  std::vector<char> before(capture.moves.size());
  for (const std::size_t last : capture.origin->last_moves()) before[last] = 1;
  for (std::size_t i = before.size(); i-- > 0;)
    if (before[i])
      for (const std::size_t earlier : capture.moves[i]) before[earlier] = 1;
  return std::count(before.begin(), before.end(), 0) == 0;
}

std::shared_ptr<Capture> capture_of(Event& event) {
  const QuietLock lock(event.mutex);
  return event.capture;
}

}  // namespace

cudaError_t submit(Stream& stream, const Work& work, const char* call) {
  const std::shared_ptr<Capture> capture = stream.capture();
  if (capture == nullptr) {
    log_launch(stream, work);
    stream.enqueue(launched(work));
    return cudaSuccess;
  }
  const Recording recording(*capture);
  const QuietLock lock(captures().mutex);
  if (capture->invalid) return unreported(cudaErrorStreamCaptureInvalidated);
  if (simulation().fail_capture > 0 && --simulation().fail_capture == 0) {
    capture->invalid = true;
    return unreported(cudaErrorStreamCaptureUnsupported);
  }
  if (const auto* copy = std::get_if<CopyWork>(&work))
    for (const void* const side : {static_cast<const void*>(copy->to), copy->from})
      if (owner_of(side) < 0 && !is_pinned(side))
        return spoil(*capture, cudaErrorStreamCaptureUnsupported, call, "a copy of pageable memory cannot be captured");
  capture->threads.insert(std::this_thread::get_id());
  add(*capture, stream, work);
  return cudaSuccess;
}

bool record_captured(Stream& stream, Event& event, cudaError_t& result) {
  const std::shared_ptr<Capture> capture = stream.capture();
  if (capture == nullptr) {
    const QuietLock lock(event.mutex);
    event.capture.reset();
    return false;
  }
  const Recording recording(*capture);
  const QuietLock lock(captures().mutex);
  result = capture->invalid ? unreported(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  if (result != cudaSuccess) return true;
  capture->threads.insert(std::this_thread::get_id());
  const QuietLock event_lock(event.mutex);
  event.capture = capture;
  event.nodes = stream.heads();
  event.moves = stream.last_moves();
  return true;
}

bool wait_captured(Stream& stream, Event& event, cudaError_t& result) {
  const std::shared_ptr<Capture> mine = stream.capture(), theirs = capture_of(event);
  if (mine == nullptr && theirs == nullptr) return false;
  const Recording recording(*(theirs != nullptr ? theirs : mine));
  const QuietLock lock(captures().mutex);
  if (theirs == nullptr) {
    const QuietLock event_lock(event.mutex);
    result = event.stream == nullptr ? cudaSuccess
                                     : spoil(*mine, cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent",
                                             "a captured stream waits for work outside its capture");
    return true;
  }
  if (theirs->ended) {
    if (mine != nullptr) mine->invalid = true;
    result = misused(cudaErrorCapturedEvent, "cudaStreamWaitEvent",
                     "the event was last recorded in a capture that has ended");
    return true;
  }
  if (mine != nullptr && mine != theirs) {
    theirs->invalid = true;
    result = spoil(*mine, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent", "the event belongs to another capture");
    return true;
  }
  result = theirs->invalid ? unreported(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  if (result != cudaSuccess) return true;
  theirs->threads.insert(std::this_thread::get_id());
  const QuietLock event_lock(event.mutex);
  if (mine == nullptr) {
    stream.capture(theirs);
    stream.heads().clear();
    stream.last_moves().clear();
    theirs->streams.insert(&stream);
  }
  merge(stream.heads(), event.nodes);
  merge(stream.last_moves(), event.moves);
  move(*theirs, stream);
  return true;
}

cudaError_t refuse_if_captured(Stream& stream, const char* call) {
  const std::shared_ptr<Capture> capture = stream.capture();
  if (capture == nullptr) return cudaSuccess;
  const QuietLock lock(captures().mutex);
  return spoil(*capture, cudaErrorStreamCaptureUnsupported, call, stream.name() + " is being captured");
}

cudaError_t refuse_if_captured(Event& event, const char* call) {
  const std::shared_ptr<Capture> capture = capture_of(event);
  if (capture == nullptr) return cudaSuccess;
  const QuietLock lock(captures().mutex);
  return spoil(*capture, cudaErrorCapturedEvent, call, "the event was last recorded in a captured stream");
}

cudaError_t refuse_while_capturing(const char* call) {
  const QuietLock lock(captures().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures().running) {
    const bool own = capture->threads.contains(std::this_thread::get_id());
    if (capture->mode == cudaStreamCaptureModeGlobal || (own && capture->mode != cudaStreamCaptureModeRelaxed))
      result = spoil(*capture, cudaErrorStreamCaptureUnsupported, call, "not while a stream is being captured");
  }
  return result;
}

Graph::~Graph() {
  for (const GraphNode& node : nodes) held_by_graph(node.work, -1);
}

void held_by_graph(const Work& work, int by) {
  if (const auto* foreign = std::get_if<ForeignWork>(&work); foreign != nullptr && foreign->held != nullptr)
    foreign->held(foreign->data, by);
}

std::uint64_t capture_of(cudaStream_t handle) {
  const Stream* const stream = as_stream(handle, "capture_of");
  const std::shared_ptr<Capture> capture = stream == nullptr ? nullptr : stream->capture();
  return capture == nullptr ? 0 : capture->number;
}

std::size_t live_graphs() { return static_cast<std::size_t>(graphs.load()); }
void graphs_changed(int by) { graphs += by; }

void forget_captures() {
  const QuietLock lock(captures().mutex);
  captures().running.clear();
  graphs = 0;
}

}  // namespace dp::simt

using namespace dp::simt;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Stream* const stream = as_stream(handle, "cudaStreamBeginCapture");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  if (stream->capture() != nullptr)
    return misused(cudaErrorIllegalState, "cudaStreamBeginCapture", stream->name() + " is being captured already");
  if (simulation().fail_begin_capture) return unreported(cudaErrorNotSupported);
  static std::atomic<std::uint64_t> captures_begun{0};
  const auto capture = std::make_shared<Capture>();
  capture->number = ++captures_begun;
  capture->origin = stream;
  capture->thread = std::this_thread::get_id();
  capture->mode = mode;
  capture->graph = std::make_unique<Graph>();
  capture->streams.insert(stream);
  capture->threads.insert(capture->thread);
  const QuietLock lock(captures().mutex);
  captures().running.push_back(capture);
  stream->heads().clear();
  stream->last_moves().clear();
  stream->capture(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  Stream* const stream = as_stream(handle, "cudaStreamEndCapture");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<Capture> capture = stream->capture();
  if (capture == nullptr)
    return misused(cudaErrorIllegalState, "cudaStreamEndCapture", stream->name() + " is not being captured");
  const Recording recording(*capture);
  const QuietLock lock(captures().mutex);
  if (capture->origin != stream)
    return spoil(*capture, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture",
                 "the capture began on " + capture->origin->name());
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return spoil(*capture, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture",
                 "another thread began the capture");
  const bool joined = all_joined(*capture);
  capture->ended = true;
  for (Stream* const member : capture->streams) member->capture(nullptr);
  std::erase(captures().running, capture);
  std::unique_ptr<Graph> made = std::move(capture->graph);  // events may keep the capture alive for long
  if (capture->invalid) return unreported(cudaErrorStreamCaptureInvalidated);
  if (const cudaError_t error = injected_error()) return error;
  if (!joined && *failed_call.load() != '\0') return unreported(cudaErrorStreamCaptureUnjoined);  // a consequence
  if (!joined)
    return misused(cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture",
                   "another stream that joined the capture is not waited for by " + stream->name());
  *graph = reinterpret_cast<cudaGraph_t>(made.release());
  graphs_changed(1);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = injected_error()) return error;
  Stream* const stream = as_stream(handle, "cudaStreamIsCapturing");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<Capture> capture = stream->capture();
  const QuietLock lock(captures().mutex);
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
