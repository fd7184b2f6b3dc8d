// Kernels that need no second one: their last block reads what the others wrote, and ends the work. Which block that is decides no result.
#pragma once

#include "device_code.h"

namespace dp::kernels::cuda {

// Whether this is the last of the `blocks` blocks that call with this counter; it then sees what the others wrote before their calls. By
// all threads of a block. The counter is 0 before the first call and after the last.
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
  DP_SHARED(unsigned, before, [1]);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    before[0] = atomicInc(counter, blocks - 1);
    __threadfence();
  }
  __syncthreads();
  return before[0] == blocks - 1;
}

}  // namespace dp::kernels::cuda
