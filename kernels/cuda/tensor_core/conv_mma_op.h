// Shared by the ops on tensor cores.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "dp/error.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/tensor_core/conv_mma.h"

namespace dp::kernels::cuda {

// Error(usage) if a tensor is not aligned to 16 bytes.
inline void check_on_16_bytes(std::initializer_list<const void*> tensors) {
  if (KernelLoading::active()) return;
  for (const void* const tensor : tensors)
    if (reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0)
      throw Error(ErrorCode::usage, "a tensor of a convolution on tensor cores is not aligned to 16 bytes");
}

}  // namespace dp::kernels::cuda
