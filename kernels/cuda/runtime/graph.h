// Graphs over CUDA's: captured from streams, launched on one.
#pragma once

#include <mutex>
#include <vector>

#include "kernels/cuda/runtime/stream.h"

namespace dp::kernels::cuda {

class CudaGraph;

// The graphs of one context. ncclCommAbort waits until every graph that holds its communicator is destroyed (NCCL 2.26 on), so whoever
// aborts drops them first.
class GraphList {
 public:
  // From any thread. No graph can be launched afterwards. A graph that is being launched is destroyed by the thread that launches it; the
  // device frees one that is running when it has ended.
  void drop();

 private:
  friend class CudaGraph;
  std::mutex mutex_;  // also of each graph's members exec_ and busy_
  std::vector<CudaGraph*> graphs_;
  bool dropped_ = false;
};

class CudaGraph final : public Graph {
 public:
  // Error(device) when it can not be instantiated. `guards` and `list` are those of the context that launches, and outlive it.
  CudaGraph(GraphHandle graph, const Guards& guards, GraphList& list);
  ~CudaGraph() override;

  // So that no launch has to take memory, while another replica's work may already wait for this one's.
  void upload(const CudaStream& stream);
  void launch(Stream& stream) override;
  std::size_t nodes() const override { return nodes_; }

 private:
  friend class GraphList;
  // Calls call(exec); throws what dropped the graph, or Error(device) when the call fails.
  template <typename Call>
  void use(const char* what, const Call& call);

  const Guards& guards_;
  GraphList& list_;
  std::size_t nodes_ = 0;
  GraphExecHandle exec_;  // empty: dropped
  bool busy_ = false;     // a thread is in use()
};

// From begin to end, on one thread, `stream` and those that wait for events of it are captured. Error(device) from either.
void begin_capture(cudaStream_t stream);
GraphHandle end_capture(cudaStream_t stream);
void drop_capture(cudaStream_t stream) noexcept;  // whatever became of it

}  // namespace dp::kernels::cuda
