#include "kernels/device/cuda/graph.h"

#include "kernels/device/cuda/runtime.h"

namespace dp::kernels::cuda {

bool GraphList::drop() {
  std::vector<GraphExecHandle> gone;  // destroyed after the lock is released
  const std::scoped_lock lock(mutex_);
  dropped_ = true;
  bool all = true;
  for (CudaGraph* const graph : graphs_) {
    all = all && !graph->busy_;
    if (!graph->busy_) gone.push_back(std::move(graph->exec_));
  }
  return all;
}

CudaGraph::CudaGraph(GraphHandle graph, const Guards& guards, GraphList& list) : guards_(guards), list_(list) {
  check(cudaGraphGetNodes(graph.get(), nullptr, &nodes_), "counting the nodes of a graph");
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph.get(), 0), "instantiating a graph");
  exec_ = GraphExecHandle(exec);
  const std::scoped_lock lock(list_.mutex_);
  list_.graphs_.push_back(this);
}

CudaGraph::~CudaGraph() {
  const std::scoped_lock lock(list_.mutex_);
  std::erase(list_.graphs_, this);
}

template <typename Call>
void CudaGraph::use(const char* what, const Call& call) {
  {
    const std::scoped_lock lock(list_.mutex_);
    if (list_.dropped_) exec_ = {};
    busy_ = static_cast<bool>(exec_);
  }
  if (!busy_) {
    check_all(guards_);
    throw Aborted();
  }
  const cudaError_t error = call(exec_.get());
  {
    const std::scoped_lock lock(list_.mutex_);
    busy_ = false;
    if (list_.dropped_) exec_ = {};
  }
  check(error, what);
}

void CudaGraph::upload(const CudaStream& stream) {
  use("uploading a graph", [&](cudaGraphExec_t exec) { return cudaGraphUpload(exec, stream.native()); });
}

void CudaGraph::launch(Stream& stream) {
  CudaStream& own = of_cuda(stream);
  bind_device(own.device());
  check_all(guards_);
  use("launching a graph", [native = own.work()](cudaGraphExec_t exec) { return cudaGraphLaunch(exec, native); });
  own.worked();
}

// Thread-local mode: other threads (NCCL watcher, loader, another engine) may use CUDA during the capture.
void begin_capture(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a stream");
}

GraphHandle end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  GraphHandle owned(graph);
  check(error, "capturing a stream");
  return owned;
}

void drop_capture(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream, &graph);
    const GraphHandle owned(graph);
  }
  cudaGetLastError();
}

}  // namespace dp::kernels::cuda
