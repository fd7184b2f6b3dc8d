// Macros and launch() for kernels, compiled by nvcc. The counterpart for the simulation is in
// tests/simulated_cuda/include; CMake chooses by include path.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>

#include "kernels/device/cuda/runtime.h"

// DP_SHARED(float, tile, [16][68]); declares a shared array.
#define DP_SHARED(T, name, dims) __shared__ __align__(16) T name dims
// DP_DYNAMIC_SHARED(float, tile); points to the dynamic shared memory, Launch::shared_bytes bytes.
#define DP_DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(128) unsigned char dp_dynamic_shared_[]; \
  T* const name = reinterpret_cast<T*>(dp_dynamic_shared_)

namespace dp::kernels::cuda {

// Enqueues the kernel and copies the arguments. Error(device) naming the kernel and the device if the launch fails.
template <typename... Params, typename... Args>
void launch(const Launch& where, void (*kernel)(Params...), Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel takes as many arguments as it has parameters");
  const void* const function = reinterpret_cast<const void*>(kernel);
  allow_shared(function, where);
  if (KernelLoading::active()) return load_kernel(function, where);
  std::tuple<std::remove_cv_t<Params>...> values(static_cast<Params>(args)...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        check_launched(cudaLaunchKernel(function, where.grid, where.block, pointers, where.shared_bytes, where.stream),
                       where);
      },
      values);
}

}  // namespace dp::kernels::cuda
