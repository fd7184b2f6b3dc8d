// Lets the last block of a kernel finish the work of all blocks, without a second kernel (docs/decisions/0033). The
// result does not depend on which block is last.
#pragma once

#include "device_code.h"

namespace dp::kernels::cuda {

// Returns true in the last of the `blocks` blocks that call it with this counter. All threads of a block must call it.
// The last block then reads what the other blocks wrote before their calls. The counter is 0 before the first call and
// after the last one.
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
