// Stream capture and graph launches.
#include <algorithm>
#include <atomic>
#include <thread>

#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

constexpr int kGraphElements = 500;
using Event = kernels::cuda::EventHandle;

std::vector<float> filled(float value) { return std::vector<float>(kGraphElements, value); }
Event event() { return kernels::cuda::make_event_handle(); }

class Graph {
 public:
  Graph() = default;
  explicit Graph(cudaGraph_t graph) : graph_(graph) { ok(cudaGraphInstantiate(&exec_, graph, 0)); }
  ~Graph() {
    if (graph_ == nullptr) return;
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { ok(cudaGraphLaunch(exec_, stream)); }
  std::size_t nodes() const {
    std::size_t count = 0;
    ok(cudaGraphGetNodes(graph_, nullptr, &count));
    return count;
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  ok(cudaStreamBeginCapture(stream, mode));
}
cudaGraph_t end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  ok(cudaStreamEndCapture(stream, &graph));
  return graph;
}
// The error that cudaStreamEndCapture returns for an invalidated capture.
cudaError_t ended(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  CHECK(graph == nullptr);
  return error;
}
cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  ok(cudaStreamIsCapturing(stream, &status));
  return status;
}

void order(cudaStream_t first, cudaStream_t second, const Event& by) {
  ok(cudaEventRecord(by.get(), first));
  ok(cudaStreamWaitEvent(second, by.get(), 0));
}

}  // namespace

TEST_CASE("graphs: captured work runs at every launch in stream order, and not before") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<float> x(filled(0)), y(filled(0));
  add_one(x, x, kGraphElements, stream);
  begin(stream);
  CHECK(status_of(stream) == cudaStreamCaptureStatusActive);
  add_one(x, y, kGraphElements, stream);
  ok(cudaMemcpyAsync(x, y, x.bytes(), cudaMemcpyDeviceToDevice, stream));
  ok(cudaMemsetAsync(y, 0, y.bytes(), stream));
  {
    const Graph graph(end(stream));
    CHECK(status_of(stream) == cudaStreamCaptureStatusNone);
    CHECK(graph.nodes() == 3);
    stream.finish();
    CHECK(x.values() == filled(1));
    for (int i = 0; i < 3; ++i) graph.launch(stream);
    add_one(x, x, kGraphElements, stream);
    graph.launch(stream);
    CHECK(live().graphs == 2);
  }  // launched work still runs after the graph is destroyed
  stream.finish();
  CHECK(x.values() == filled(6));
  CHECK(y.values() == filled(0));
  CHECK(live().graphs == 0);
}

TEST_CASE("graphs: streams that wait for a captured event join in order, also those of other devices") {
  const FreshSimulation fresh(2);
  simulation().set_peers(Peer::works);
  simulation().log_launches = true;
  const Event fork = event(), half = event();
  const TestStream first, second;
  const DeviceArray<float> a(filled(0)), b(filled(0));
  ok(cudaDeviceEnablePeerAccess(1, 0));
  ok(cudaSetDevice(1));
  ok(cudaDeviceEnablePeerAccess(0, 0));
  const TestStream other;
  const Event back = event();
  const DeviceArray<float> c(filled(0));
  ok(cudaSetDevice(0));
  begin(first);
  add_one(a, a, kGraphElements, first);
  order(first, second, fork);
  ok(cudaStreamWaitEvent(other, fork.get(), 0));
  add_one(a, b, kGraphElements, second);
  ok(cudaSetDevice(1));
  add_one(a, c, kGraphElements, other);
  order(other, first, back);
  ok(cudaSetDevice(0));
  order(second, first, half);
  add_one(b, a, kGraphElements, first);
  const Graph graph(end(first));
  CHECK(graph.nodes() == 4);
  CHECK(take_launches().empty());
  for (int i = 0; i < 20; ++i) graph.launch(first);
  first.finish();
  CHECK(a.values() == filled(60));
  CHECK(c.values() == filled(59));
  const auto launches = take_launches();
  REQUIRE(launches.size() == 3);
  std::vector<std::size_t> counts;
  for (const auto& [stream, of_stream] : launches) {
    counts.push_back(of_stream.size());
    for (const std::string& launch : of_stream) CHECK(launch == "kernel add_one_kernel 8x1x1 of 64x1x1, 0 bytes");
  }
  std::sort(counts.begin(), counts.end());
  CHECK(counts == std::vector<std::size_t>{20, 20, 40});
}

TEST_CASE("graphs: nodes without an edge between them run concurrently") {
  const FreshSimulation fresh;
  const TestStream first, second;
  const Event fork = event(), join = event();
  struct Both {
    std::atomic<int> came{0};
    static void meet(void* self) {
      auto& came = static_cast<Both*>(self)->came;
      ++came;
      while (came % 2 != 0) std::this_thread::yield();
    }
  } both;
  begin(first);
  order(first, second, fork);
  ok(cudaLaunchHostFunc(first, Both::meet, &both));
  ok(cudaLaunchHostFunc(second, Both::meet, &both));
  order(second, first, join);
  const Graph graph(end(first));
  for (int i = 0; i < 3; ++i) graph.launch(first);
  first.finish();  // hangs unless both branches run concurrently
  CHECK(both.came == 6);
}

TEST_CASE("graphs: unjoined work and a stream of another capture are rejected") {
  const FreshSimulation fresh;
  const TestStream first, second;
  const Event fork = event(), theirs = event();
  const DeviceArray<float> x(filled(0)), y(filled(0));
  begin(first);
  order(first, second, fork);
  add_one(x, y, kGraphElements, second);
  CHECK(ended(second) == cudaErrorStreamCaptureUnmatched);
  CHECK(ended(first) == cudaErrorStreamCaptureInvalidated);
  begin(first);
  order(first, second, fork);
  add_one(x, y, kGraphElements, second);
  add_one(x, x, kGraphElements, first);
  CHECK(ended(first) == cudaErrorStreamCaptureUnjoined);
  CHECK(ended(first) == cudaErrorIllegalState);

  begin(first);
  begin(second);
  ok(cudaEventRecord(theirs.get(), second));
  CHECK(cudaStreamWaitEvent(first, theirs.get(), 0) == cudaErrorStreamCaptureMerge);
  CHECK(ended(first) == cudaErrorStreamCaptureInvalidated);
  CHECK(ended(second) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamWaitEvent(first, theirs.get(), 0) == cudaErrorCapturedEvent);

  ok(cudaEventRecord(fork.get(), second));
  begin(first);
  CHECK(cudaStreamWaitEvent(first, fork.get(), 0) == cudaErrorStreamCaptureIsolation);
  CHECK(ended(first) == cudaErrorStreamCaptureInvalidated);
  begin(first);
  const Event never = event();
  CHECK(cudaStreamWaitEvent(first, never.get(), 0) == cudaSuccess);
  CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal) == cudaErrorIllegalState);
  cudaError_t elsewhere{};
  std::thread([&] { elsewhere = ended(first); }).join();
  CHECK(elsewhere == cudaErrorStreamCaptureWrongThread);
  CHECK(ended(first) == cudaErrorStreamCaptureInvalidated);
  // The failed captures left no trace.
  add_one(x, x, kGraphElements, first);
  first.finish();
  CHECK(x.values() == filled(1));
  CHECK(live().graphs == 0);
}

TEST_CASE("graphs: a stream that joins a capture without work must rejoin with its last wait") {
  const FreshSimulation fresh;
  const TestStream first, second;
  const Event fork = event(), again = event(), join = event();
  const DeviceArray<float> x(filled(0));
  for (const int missing : {0, 1, 2}) {
    begin(first);
    add_one(x, x, kGraphElements, first);
    order(first, second, fork);
    if (missing != 1) order(second, first, join);
    add_one(x, x, kGraphElements, first);
    if (missing == 2) order(first, second, again);
    if (missing == 0)
      ok(cudaGraphDestroy(end(first)));
    else
      CHECK(ended(first) == cudaErrorStreamCaptureUnjoined);
  }
}

TEST_CASE("graphs: a graph can fail to be instantiated, uploaded or launched") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<float> x(filled(0));
  begin(stream);
  add_one(x, x, kGraphElements, stream);
  cudaGraph_t graph = end(stream);
  cudaGraphExec_t exec = nullptr;
  simulation().fail_instantiate = 1;
  CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaErrorMemoryAllocation);
  ok(cudaGraphInstantiate(&exec, graph, 0));
  simulation().fail_upload = 1;
  CHECK(cudaGraphUpload(exec, stream) == cudaErrorMemoryAllocation);
  ok(cudaGraphUpload(exec, stream));
  simulation().fail_graph_launch = 2;
  ok(cudaGraphLaunch(exec, stream));
  CHECK(cudaGraphLaunch(exec, stream) == cudaErrorMemoryAllocation);
  stream.finish();
  CHECK(x.values() == filled(1));
  ok(cudaGraphExecDestroy(exec));
  ok(cudaGraphDestroy(graph));
  CHECK(take_reports().empty());
}

TEST_CASE("graphs: calls that wait, allocate or read pageable memory invalidate a capture") {
  const FreshSimulation fresh;
  const TestStream stream, aside;
  const Event inside = event();
  const DeviceArray<float> x(filled(0));
  std::vector<float> ordinary = filled(3);
  void* memory = nullptr;
  const auto calls = {
      std::pair(
          cudaErrorStreamCaptureUnsupported,
          +[](cudaStream_t s, cudaEvent_t, void**) { return cudaStreamSynchronize(s); }),
      std::pair(
          cudaErrorStreamCaptureUnsupported, +[](cudaStream_t s, cudaEvent_t, void**) { return cudaStreamQuery(s); }),
      std::pair(
          cudaErrorCapturedEvent, +[](cudaStream_t, cudaEvent_t e, void**) { return cudaEventSynchronize(e); }),
      std::pair(
          cudaErrorCapturedEvent, +[](cudaStream_t, cudaEvent_t e, void**) { return cudaEventQuery(e); }),
      std::pair(
          cudaErrorStreamCaptureUnsupported, +[](cudaStream_t, cudaEvent_t, void** m) { return cudaMalloc(m, 64); }),
      std::pair(
          cudaErrorStreamCaptureUnsupported,
          +[](cudaStream_t, cudaEvent_t, void** m) { return cudaMallocHost(m, 64); }),
      std::pair(
          cudaErrorStreamCaptureUnsupported,
          +[](cudaStream_t, cudaEvent_t, void**) { return cudaDeviceSynchronize(); }),
  };
  for (const auto& [wanted, call] : calls) {
    begin(stream);
    ok(cudaEventRecord(inside.get(), stream));
    CHECK(call(stream, inside.get(), &memory) == wanted);
    CHECK(status_of(stream) == cudaStreamCaptureStatusInvalidated);
    CHECK(ended(stream) == cudaErrorStreamCaptureInvalidated);
  }
  begin(stream);
  CHECK(cudaMemcpyAsync(x, ordinary.data(), x.bytes(), cudaMemcpyHostToDevice, stream) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(ended(stream) == cudaErrorStreamCaptureInvalidated);
  // Another thread may synchronise a stream, except in global capture mode.
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    begin(stream, mode);
    cudaError_t error{};
    std::thread([&] { error = cudaStreamSynchronize(aside); }).join();
    const bool global = mode == cudaStreamCaptureModeGlobal;
    CHECK(error == (global ? cudaErrorStreamCaptureUnsupported : cudaSuccess));
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == (global ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
    if (graph != nullptr) ok(cudaGraphDestroy(graph));
  }
  begin(stream, cudaStreamCaptureModeRelaxed);
  ok(cudaMalloc(&memory, 64));
  ok(cudaFree(memory));
  ok(cudaGraphDestroy(end(stream)));
}

TEST_CASE("graphs: a capture can fail when it begins and in its middle") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<float> x(filled(0));
  simulation().fail_begin_capture = true;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaErrorNotSupported);
  simulation().fail_begin_capture = false;
  begin(stream);
  simulation().fail_capture = 2;
  ok(cudaMemsetAsync(x, 0, x.bytes(), stream));
  CHECK(cudaMemsetAsync(x, 0, x.bytes(), stream) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaMemsetAsync(x, 0, x.bytes(), stream) == cudaErrorStreamCaptureInvalidated);
  CHECK(ended(stream) == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("graphs: the race detector reports a missing edge, whatever comes first") {
  if (!detects_races()) DP_SKIP("the race build of this program has the race detector");
  for (const bool planted : {false, true}) {
    const FreshSimulation fresh;
    const TestStream first, second;
    const Event fork = event(), join = event(), written = event();
    const DeviceArray<float> x(filled(1)), y(filled(0)), z(filled(0));
    begin(first);
    order(first, second, fork);
    add_one(x, y, kGraphElements, first);
    ok(cudaEventRecord(written.get(), first));
    simulation().left_out_wait = {.device = 0, .for_other_device = false, .number = planted ? 1 : 0};
    ok(cudaStreamWaitEvent(second, written.get(), 0));
    add_one(y, z, kGraphElements, second);
    order(second, first, join);
    const Graph graph(end(first));
    graph.launch(first);
    first.finish();
    const auto reports = take_reports();
    CHECK(reports.empty() == !planted);
    if (planted) CHECK(reports.front().find("no event orders them") != std::string::npos);
  }
}

}  // namespace dp::simt::test
