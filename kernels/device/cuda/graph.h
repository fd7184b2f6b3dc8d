// CUDA graphs: captured from streams, launched on one stream.
#pragma once

#include <mutex>
#include <vector>

#include "kernels/device/cuda/stream.h"

namespace dp::kernels::cuda {

class CudaGraph;

// The graphs of one context. Since NCCL 2.26, ncclCommAbort waits until every graph that holds the communicator is
// destroyed. Call drop() before ncclCommAbort.
class GraphList {
 public:
  // Destroys all graphs; none can be launched afterwards. May be called from any thread. Returns false if a thread is
  // launching one: that thread destroys it afterwards. The device frees a running graph when the graph ends.
  bool drop();

 private:
  friend class CudaGraph;
  std::mutex mutex_;  // also guards exec_ and busy_ of each graph
  std::vector<CudaGraph*> graphs_;
  bool dropped_ = false;
};

class CudaGraph final : public Graph {
 public:
  // Error(device) if instantiation fails. `guards` and `list` belong to the launching context and outlive the graph.
  CudaGraph(GraphHandle graph, const Guards& guards, GraphList& list);
  ~CudaGraph() override;

  // Uploads the graph, so that launch() allocates no memory. At that time another replica's work may already wait for
  // this replica's work.
  void upload(const CudaStream& stream);
  void launch(Stream& stream) override;
  std::size_t nodes() const override { return nodes_; }

 private:
  friend class GraphList;
  // Calls call(exec). If the graph was dropped, throws a guard's error or Aborted. Error(device) if the call fails.
  template <typename Call>
  void use(const char* what, const Call& call);

  const Guards& guards_;
  GraphList& list_;
  std::size_t nodes_ = 0;
  GraphExecHandle exec_;  // empty: dropped
  bool busy_ = false;     // a thread is in use()
};

// Captures `stream`, and the streams that wait for its events. Both calls must be on the same thread. Error(device)
// from either.
void begin_capture(cudaStream_t stream);
GraphHandle end_capture(cudaStream_t stream);
void drop_capture(cudaStream_t stream) noexcept;  // ends a capture in any state and discards its graph

}  // namespace dp::kernels::cuda
