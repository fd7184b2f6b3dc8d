#include "kernels/cuda/graph.h"

#include "kernels/cuda/check.h"

namespace dp::kernels::cuda {

CudaGraph::CudaGraph(GraphHandle graph, const Guards& guards) : guards_(guards) {
  check(cudaGraphGetNodes(graph.get(), nullptr, &nodes_), "counting a graph's nodes");
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph.get(), 0), "making a graph ready");
  exec_ = GraphExecHandle(exec);
}

void CudaGraph::upload(const CudaStream& stream) {
  check(cudaGraphUpload(exec_.get(), stream.native()), "bringing a graph to the device");
}

void CudaGraph::launch(Stream& stream) {
  CudaStream& own = of_cuda(stream);
  bind_device(own.device());
  check_all(guards_);
  check(cudaGraphLaunch(exec_.get(), own.work()), "launching a graph");
  own.worked();
}

// Thread-local: what other threads do meanwhile (the watcher of NCCL, the loader, another engine) is no business of the capture.
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
