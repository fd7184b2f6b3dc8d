// What a kernel is launched with. `launch` itself is the device code's: native/device_code.h, or its twin in tests/simulated_cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dp::kernels::cuda {

struct Launch {
  const char* kernel;  // its name, for errors
  dim3 grid;
  dim3 block;
  cudaStream_t stream;
  std::size_t shared_bytes = 0;  // dynamic
};

// Error(device) naming the kernel, its launch and the device. Nothing where error is cudaSuccess.
void check_launch(cudaError_t error, const Launch& launch);
void check_launched(cudaError_t error, const Launch& launch);  // the same of the launch itself, which LaunchNames notes

// While one exists on a thread, launch() loads its kernel on the current device and does not launch it. With lazy module loading
// (kernels/plugin.cpp) a kernel is loaded when it is first used, and that may wait for what runs on the device: for a collective, say, that
// waits for this thread.
class KernelLoading {
 public:
  KernelLoading();
  ~KernelLoading();
  KernelLoading(const KernelLoading&) = delete;
  KernelLoading& operator=(const KernelLoading&) = delete;

  static bool active();
};
void load_kernel(const void* function, const Launch& launch);

// Before a launch: where it asks for much dynamic shared memory, lets the function have as much as there is on the current device.
// In native/allow_shared.cpp.
void allow_shared(const void* function, const Launch& where);

constexpr unsigned blocks_for(long long count, long long per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace dp::kernels::cuda
