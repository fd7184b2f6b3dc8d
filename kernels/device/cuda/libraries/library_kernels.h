// Our own kernels that complete library ops.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/layout.h"

namespace dp::kernels::cuda {

// Converts `count` contiguous elements between float32 and a 16-bit type, in either direction.
void enqueue_cast(cudaStream_t stream, const void* from, DType from_type, void* to, DType to_type, std::int64_t count);

// db = sum of dy over all dimensions but the channels.
class BiasSums {
 public:
  // dy is (N,C,H,W) with a resolved layout, or (N,features).
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
