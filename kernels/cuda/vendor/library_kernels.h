// What our own kernels add to what a library computes.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/layout.h"

namespace dp::kernels::cuda {

// `count` elements of another float type, side by side: float32 to a 16-bit one, or back.
void enqueue_cast(cudaStream_t stream, const void* from, DType from_type, void* to, DType to_type, std::int64_t count);

// db = sum of dy over all but the channels.
class BiasSums {
 public:
  // Of dy (N,C,H,W), its layout resolved, or (N,features).
  explicit BiasSums(const TensorDesc& dy);
  ~BiasSums();
  BiasSums(BiasSums&&) noexcept;
  BiasSums& operator=(BiasSums&&) noexcept;

  std::size_t workspace_bytes() const;
  void enqueue(cudaStream_t stream, const void* dy, void* db, void* workspace) const;

 private:
  struct Kernels;
  std::unique_ptr<const Kernels> kernels_;
};

}  // namespace dp::kernels::cuda
