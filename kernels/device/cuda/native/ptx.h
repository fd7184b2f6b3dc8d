// Inline PTX. The counterpart in tests/simulated_cuda/include does the same on the host. Before sm_80, the asynchronous
// copies are synchronous and waiting does nothing. Before sm_80, tensor-core products and the 16-bit packing trap.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/low_float.h"

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

// ---- wgmma. A warpgroup is four successive warps; its first warp's number is a multiple of four. wgmma needs sm_90a;
// on other architectures these functions trap.

// Whether the code for compute capability 9.0 was compiled for sm_90a.
inline constexpr bool kHasWgmma = DP_CUDA_SM90A;

// Returns the descriptor of an operand in shared memory: lines (rows of a or columns of b) by 16 values of k, with the
// 128-byte swizzle. A memory row has 128 bytes, is 128-byte aligned, and consists of 8 chunks of 16 bytes. K-major:
// each memory row contains one line. `first` is the address of the first line's first value. This value must begin a
// chunk with an even number. MN-major: each memory row contains one k of 64 lines. `first` is the address of the first
// of these rows. The next 64 lines are `next_lines` bytes after them. Swizzle: chunk c of the memory row at shared
// address a is stored as chunk c ^ (a / 128 % 8). `first` is the address before the swizzle.
__device__ __forceinline__ std::uint64_t wgmma_descriptor(const void* first, unsigned next_lines = 1024) {
  constexpr std::uint64_t kSwizzle = std::uint64_t{1} << 62;            // of 128 bytes
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;  // distance between groups of eight rows
  return kSwizzle | kEightRows | std::uint64_t{next_lines / 16} << 16 | (shared_address(first) & 0x3ffffu) / 16;
}

// After the next barrier, wgmma sees this thread's completed writes to shared memory.
__device__ __forceinline__ void fence_async_proxy() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Required before the first wgmma, and before the next one after other code has accessed the accumulators.
__device__ __forceinline__ void wgmma_fence() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __syncwarp();  // the lanes of a warp must execute these instructions together
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Commits all wgmmas since the last call as one group.
__device__ __forceinline__ void wgmma_commit() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most the `pending` latest groups are unfinished.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}
// The compiler does not move accesses to the accumulators across this call. Call it before wgmma_fence() and after the
// last wait.
template <int count>
__device__ __forceinline__ void fence_accumulators(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define DP_WGMMA(type)                                                                                              \
  asm volatile(                                                                                                     \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                                                            \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                   \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, adds, 1, 1, %35, %36;\n}"                            \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
      : "l"(a), "l"(b), "r"(1), "n"(k_major_a ? 0 : 1), "n"(k_major_b ? 0 : 1))

// Computes d += a b in float32, asynchronously. Do not change the operands or access d before a wait. a and b are
// descriptors. d[4 j + 2 half + i] of thread t is the result of row t / 32 * 16 + t % 32 / 4 + half * 8 and column
// 8 j + t % 4 * 2 + i; half and i are 0 or 1.
template <typename Low, bool k_major_a, bool k_major_b>
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<Low, BFloat16>)
    DP_WGMMA("bf16");
  else
    DP_WGMMA("f16");
#else
  __trap();
#endif
}
#undef DP_WGMMA

#define DP_FOUR(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define DP_32(i)                                                                                              \
  DP_FOUR(i), DP_FOUR(i + 1), DP_FOUR(i + 2), DP_FOUR(i + 3), DP_FOUR(i + 4), DP_FOUR(i + 5), DP_FOUR(i + 6), \
      DP_FOUR(i + 7)
#define DP_FIRST_32                                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23," \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define DP_LAST_32                                                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53," \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DP_WGMMA(shape, type, accumulators, operands, ...)                                                      \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" accumulators "}, " operands ";" \
               : __VA_ARGS__                                                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(k_major_b ? 0 : 1))
#define DP_WGMMA_N64(type) DP_WGMMA("m64n64k16", type, DP_FIRST_32, "{%32, %33, %34, %35}, %36, 1, 1, 1, %37", DP_32(0))
#define DP_WGMMA_N128(type) \
  DP_WGMMA("m64n128k16", type, DP_FIRST_32 DP_LAST_32, "{%64, %65, %66, %67}, %68, 1, 1, 1, %69", DP_32(0), DP_32(8))

// The same with 8 * eights columns, and with a in registers: warp w of a warpgroup passes rows 16 w to 16 w + 15 as
// the fragments that ldmatrix_x4() loads. Do not change these registers before a wait, either.
// d[j][2 half + i] is what wgmma_m64n64k16() calls d[4 j + 2 half + i].
template <typename Low, bool k_major_b, int eights>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[eights][4], const unsigned (&a)[4], std::uint64_t b) {
  static_assert(eights == 8 || eights == 16);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (std::is_same_v<Low, BFloat16>) {
    if constexpr (eights == 8)
      DP_WGMMA_N64("bf16");
    else
      DP_WGMMA_N128("bf16");
  } else {
    if constexpr (eights == 8)
      DP_WGMMA_N64("f16");
    else
      DP_WGMMA_N128("f16");
  }
#else
  __trap();
#endif
}
#undef DP_FOUR
#undef DP_32
#undef DP_FIRST_32
#undef DP_LAST_32
#undef DP_WGMMA
#undef DP_WGMMA_N64
#undef DP_WGMMA_N128

}  // namespace dp::kernels::cuda::ptx
