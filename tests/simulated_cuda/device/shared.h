// Shared memory and the block's barrier.
#pragma once

#include <atomic>

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/detector.h"

// An array per block, identified by the address of a static variable: DP_SHARED(float, tile, [16][68]);
#define DP_SHARED(T, name, ...)                                 \
  using name##_shared_type = T __VA_ARGS__;                     \
  static const char name##_shared_key = 0;                      \
  name##_shared_type& name = *static_cast<name##_shared_type*>( \
      ::dp::simt::running_block->shared_array(&name##_shared_key, sizeof(name##_shared_type), #name))
#define DP_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::dp::simt::running_block->shared().dynamic())

inline void __syncthreads(DP_SIMT_CALLER) { dp::simt::running_block->barrier(DP_SIMT_SITE); }

// Memory is sequentially consistent here; the race detector records the fence.
DP_SIMT_UNSEEN inline void __threadfence() {
  if (dp::simt::detector != nullptr) dp::simt::detector->fence(dp::simt::running_block->thread());
  dp::simt::running_block->yield();
}
DP_SIMT_UNSEEN inline void __threadfence_block() {}
[[noreturn]] DP_SIMT_UNSEEN inline void __trap(DP_SIMT_CALLER) {
  dp::simt::running_block->fail("__trap at %s:%d", DP_SIMT_SITE.name(), caller_line);
}
