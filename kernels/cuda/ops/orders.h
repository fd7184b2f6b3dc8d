// Memory orders and element counts of tensors, for pooling, normalisation and similar ops.
#pragma once

#include <string>

#include "dp/error.h"
#include "kernels/cuda/runtime/tensor_layout.h"

namespace dp::kernels::cuda {

// Returns the tensor with a resolved layout: `any` becomes the order of `model`.
inline TensorDesc in_order_of(const TensorDesc& model, const TensorDesc& tensor) {
  TensorDesc result = tensor;
  if (result.layout.any())
    result.layout =
        is_channels_last(model) ? channels_last(tensor.shape, tensor.type) : plain(tensor.shape, tensor.type);
  return result;
}

// True if both are channels last, false if both are row-major. Error(usage) if they differ.
inline bool both_channels_last(const TensorDesc& a, const TensorDesc& b) {
  if (is_channels_last(a) && is_channels_last(b)) return true;
  if (order_of(a).channels_last || order_of(b).channels_last)
    throw Error(ErrorCode::usage, "a pool requires one memory layout for input and output, not " + a.layout.name +
                                      " and " + b.layout.name);
  return false;
}

// Number of elements, for kernels with 32-bit indices that may run slightly past the end.
// Error(usage) above 2^32 - 2^20.
inline unsigned index_count(const TensorDesc& tensor) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 32) - (std::int64_t{1} << 20);
  const std::int64_t count = tensor.shape.numel();
  if (count > kMost)
    throw Error(ErrorCode::usage, "a tensor " + to_string(tensor.shape) + " has more elements than this op supports, " +
                                      std::to_string(kMost) + "; use smaller micro-batches");
  return static_cast<unsigned>(count);
}

}  // namespace dp::kernels::cuda
