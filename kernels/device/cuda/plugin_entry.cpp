// The only exported function of the library.
#include <cstring>

#include "kernels/device/cuda/cuda_backend.h"

extern "C" __attribute__((visibility("default"))) void* dp_plugin(const char* abi, const char** own_abi) {
  *own_abi = DP_ABI_HASH;
  return std::strcmp(abi, DP_ABI_HASH) == 0 ? static_cast<dp::kernels::Backend*>(&dp::kernels::cuda::cuda_backend())
                                            : nullptr;
}
