#include "kernels/device/cuda/cuda_backend.h"

#include <cstdlib>

#include "device_code.h"
#include "kernels/device/cuda/runtime.h"
#include "ptx.h"

namespace dp::kernels::cuda {
namespace {

__global__ void any_kernel() {}

cudaFuncAttributes attributes_of_code() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&any_kernel)),
        "reading the compiled architecture of a kernel");
  return attributes;
}

// Whether the driver compiles PTX although the file has machine code (CUDA C++ Programming Guide, "CUDA Environment
// Variables"). Our PTX for 9.0 has no wgmma.
bool forces_ptx() {
  const char* const value = std::getenv("CUDA_FORCE_PTX_JIT");
  return value != nullptr && std::atoi(value) != 0;
}

}  // namespace

int compiled_capability() { return attributes_of_code().ptxVersion; }

bool has_wgmma() { return ptx::kHasWgmma && attributes_of_code().binaryVersion == 90 && !forces_ptx(); }

}  // namespace dp::kernels::cuda
