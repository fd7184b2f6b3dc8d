// Graphs over CUDA's: captured from streams, launched on one.
#pragma once

#include "kernels/cuda/stream.h"

namespace dp::kernels::cuda {

class CudaGraph final : public Graph {
 public:
  // Error(device) when it can not be instantiated. `guards` are those of the context that launches, and outlive it.
  CudaGraph(GraphHandle graph, const Guards& guards);

  // So that no launch has to take memory, while another replica's work may already wait for this one's.
  void upload(const CudaStream& stream);
  void launch(Stream& stream) override;
  std::size_t nodes() const override { return nodes_; }

 private:
  const Guards& guards_;
  std::size_t nodes_ = 0;
  GraphExecHandle exec_;
};

// From begin to end, on one thread, `stream` and those that wait for events of it are captured. Error(device) from either.
void begin_capture(cudaStream_t stream);
GraphHandle end_capture(cudaStream_t stream);
void drop_capture(cudaStream_t stream) noexcept;  // whatever became of it

}  // namespace dp::kernels::cuda
