// The one function that the library exports.
#include <cstring>

#include "kernels/cuda/cuda_backend.h"

extern "C" __attribute__((visibility("default"))) dp::kernels::Backend* dp_plugin(const char* abi,
                                                                                  const char** own_abi) {
  *own_abi = DP_ABI_HASH;
  return std::strcmp(abi, DP_ABI_HASH) == 0 ? &dp::kernels::cuda::cuda_backend() : nullptr;
}
