// Launch parameters and checks. launch() itself is in native/device_code.h, its counterpart in tests/simulated_cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dp::kernels::cuda {

struct Launch {
  const char* kernel;  // name for error messages
  dim3 grid;
  dim3 block;
  cudaStream_t stream;
  std::size_t shared_bytes = 0;  // dynamic
};

// Throws Error(device) naming the kernel, its launch and the device, unless `error` is cudaSuccess.
void check_launch(cudaError_t error, const Launch& launch);
void check_launched(cudaError_t error, const Launch& launch);  // for cudaLaunchKernel; also adds to LaunchNames

// While a thread holds one, launch() only loads the kernel on the current device. With lazy module loading
// (kernels/device/plugin.cpp) CUDA loads a kernel at its first use. Loading can wait for work on the device. A
// collective on the device may wait for this thread: a deadlock (docs/decisions/0028).
class KernelLoading {
 public:
  KernelLoading();
  ~KernelLoading();
  KernelLoading(const KernelLoading&) = delete;
  KernelLoading& operator=(const KernelLoading&) = delete;

  static bool active();
};
void load_kernel(const void* function, const Launch& launch);

// Raises the function's limit of dynamic shared memory to the current device's maximum if the launch needs more than 32
// KiB. In native/allow_shared.cpp.
void allow_shared(const void* function, const Launch& where);

constexpr unsigned blocks_for(long long count, long long per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace dp::kernels::cuda
