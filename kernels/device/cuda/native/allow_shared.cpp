#include <cuda_runtime_api.h>

#include <set>
#include <utility>

#include "kernels/device/cuda/launch.h"

namespace dp::kernels::cuda {

// Sets the device's maximum, not this launch's size: the limit belongs to the function, and another thread may be about
// to launch it with more.
void allow_shared(const void* function, const Launch& where) {
  constexpr std::size_t kUnasked = 32 * 1024;  // without opt-in, static and dynamic memory together may use 48 KiB
  if (where.shared_bytes <= kUnasked) return;
  thread_local std::set<std::pair<int, const void*>> allowed;
  int device = 0, most = 0;
  check_launch(cudaGetDevice(&device), where);
  if (allowed.contains({device, function})) return;
  cudaFuncAttributes attributes{};
  check_launch(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), where);
  check_launch(cudaFuncGetAttributes(&attributes, function), where);
  check_launch(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    most - static_cast<int>(attributes.sharedSizeBytes)),
               where);
  allowed.insert({device, function});
}

}  // namespace dp::kernels::cuda
