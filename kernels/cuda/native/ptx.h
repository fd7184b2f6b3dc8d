// Inline PTX. The twin in tests/simt/include does the same on the host. Asynchronous copies exist from sm_80 on; before, the
// copy is done at once and waiting is nothing.
#pragma once

#include <cuda_runtime.h>

namespace dp::kernels::cuda::ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, both 16-byte aligned; zeros when not `valid` (then `src` is not read).
__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(valid ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(dst) = valid ? *static_cast<const uint4*>(src) : make_uint4(0, 0, 0, 0);
#endif
}

// 8 bytes.
__device__ __forceinline__ void cp_async8(void* dst, const void* src, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(valid ? 8 : 0)
               : "memory");
#else
  *static_cast<uint2*>(dst) = valid ? *static_cast<const uint2*>(src) : make_uint2(0, 0);
#endif
}

// 4 bytes.
__device__ __forceinline__ void cp_async4(void* dst, const void* src, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(valid ? 4 : 0)
               : "memory");
#else
  *static_cast<unsigned*>(dst) = valid ? *static_cast<const unsigned*>(src) : 0u;
#endif
}

// Closes the group of this thread's copies since the last call.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's latest groups are unfinished. A barrier must follow before others read.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace dp::kernels::cuda::ptx
