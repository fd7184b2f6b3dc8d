#include <cuda_runtime_api.h>

#include <set>
#include <utility>

#include "kernels/cuda/launch.h"

namespace dp::kernels::cuda {

void allow_shared(const void* function, const Launch& where);

// Always the most, never a launch's own: the limit belongs to the function, and another thread may be about to launch it with more.
void allow_shared(const void* function, const Launch& where) {
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
