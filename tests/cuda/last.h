#pragma once

#include "kernels/device/cuda/cuda_op.h"

namespace dp::test {

// A tensor whose channels are the innermost dimension in memory.
inline kernels::TensorDesc last(const Shape& shape, DType type = DType::f32) {
  return {shape, type, kernels::cuda::channels_last(shape, type)};
}

}  // namespace dp::test
