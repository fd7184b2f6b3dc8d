// Inline PTX. The counterpart in tests/simulated_cuda/include does the same on the host. Before sm_80, the asynchronous
// copies are synchronous and waiting does nothing. Before sm_80, tensor-core products and the 16-bit packing trap.
#pragma once

#include <cuda_runtime.h>

namespace dp::kernels::cuda::ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global to shared memory, both 16-byte aligned. Writes zeros if not `valid`; then `src` is not
// read.
__device__ __forceinline__ void cp_async16(void* dst, const void* src, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(valid ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(dst) = valid ? *static_cast<const uint4*>(src) : make_uint4(0, 0, 0, 0);
#endif
}

// Copies 8 bytes.
__device__ __forceinline__ void cp_async8(void* dst, const void* src, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(valid ? 8 : 0)
               : "memory");
#else
  *static_cast<uint2*>(dst) = valid ? *static_cast<const uint2*>(src) : make_uint2(0, 0);
#endif
}

// Copies 4 bytes.
__device__ __forceinline__ void cp_async4(void* dst, const void* src, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(valid ? 4 : 0)
               : "memory");
#else
  *static_cast<unsigned*>(dst) = valid ? *static_cast<const unsigned*>(src) : 0u;
#endif
}

// Groups this thread's copies since the last call.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's latest groups are unfinished. Other threads may read only after a
// barrier.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Prefetches the 128-byte line into L2 without waiting.
__device__ __forceinline__ void prefetch_l2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(line)));
}

// Loads four 8x8 matrices of 16-bit values from shared memory. Lanes 8i to 8i+7 pass the row addresses of matrix i;
// each row is 16 bytes, 16-byte aligned. fragments[i] holds columns lane % 4 * 2 and the next one of row lane / 4 of
// matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&fragments)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(shared_address(row))
               : "memory");
}
// Loads the matrices transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&fragments)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a b, accumulated in float32. a is 16x16 row-major and b is 16x8 column-major, in ldmatrix fragments.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

// Rounds two floats to nearest even; `low` is in the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
  __trap();
#endif
  return pair;
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
  __trap();
#endif
  return pair;
}

// The two float16 values of a pair, lower half first.
__device__ __forceinline__ float2 unpack_f16(unsigned pair) {
  float2 values;
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}

}  // namespace dp::kernels::cuda::ptx
