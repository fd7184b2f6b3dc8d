#include "kernels/cuda/runtime/compiled_capability.h"

#include "device_code.h"
#include "kernels/cuda/runtime/check.h"
#include "ptx.h"

namespace dp::kernels::cuda {
namespace {

__global__ void any_kernel() {}

}  // namespace

int compiled_capability() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&any_kernel)),
        "reading the compiled architecture of a kernel");
  return attributes.ptxVersion;
}

bool has_wgmma() { return ptx::kHasWgmma; }

}  // namespace dp::kernels::cuda
