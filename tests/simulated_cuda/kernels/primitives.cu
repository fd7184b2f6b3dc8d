#include "simulated_cuda/kernels/primitives.h"

#include "device_code.h"
#include "ptx.h"

namespace dp::simt::test {
namespace {

namespace ptx = kernels::cuda::ptx;
using kernels::cuda::launch;
constexpr unsigned kAll = 0xffffffffu;

__global__ void shuffle_kernel(int kind, const int* x, int* out, int selector, int width) {
  const int t = threadIdx.x;
  switch (static_cast<Shuffle>(kind)) {
    case Shuffle::index: out[t] = __shfl_sync(kAll, x[t], selector, width); break;
    case Shuffle::up: out[t] = __shfl_up_sync(kAll, x[t], static_cast<unsigned>(selector), width); break;
    case Shuffle::down: out[t] = __shfl_down_sync(kAll, x[t], static_cast<unsigned>(selector), width); break;
    case Shuffle::exclusive_or: out[t] = __shfl_xor_sync(kAll, x[t], selector, width); break;
  }
}

__global__ void vote_kernel(const int* x, unsigned* out) {
  const int t = threadIdx.x;
  out[3 * t] = __ballot_sync(kAll, x[t] != 0);
  out[3 * t + 1] = static_cast<unsigned>(__any_sync(kAll, x[t] != 0));
  out[3 * t + 2] = static_cast<unsigned>(__all_sync(kAll, x[t] != 0));
}

__global__ void atomics_kernel(int* out) {
  DP_SHARED(int, shared_sum, );
  const int t = threadIdx.x;
  if (t == 0) shared_sum = 0;
  __syncthreads();
  atomicAdd(&out[0], t);
  atomicSub(&out[1], t);
  atomicMax(&out[2], t);
  atomicMin(&out[3], -t);
  atomicOr(&out[4], 1 << t % 8);
  atomicAnd(&out[5], ~(1 << t % 8));
  atomicCAS(&out[6], 0, 7);
  atomicAdd(&shared_sum, 1);
  __syncthreads();
  if (t == 0) atomicExch(&out[7], shared_sum);
}

__global__ void count_around_kernel(unsigned* counter, unsigned limit) { atomicInc(counter, limit); }

__global__ void add_doubles_kernel(double* sum) { atomicAdd(sum, 0.5); }

__global__ void places_kernel(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned place = block * blockDim.x * blockDim.y * blockDim.z + thread;
  out[place] = static_cast<int>(place);
}

template <int kWords>
__global__ void copy_kernel(const unsigned* x, unsigned* y, int valid) {
  DP_DYNAMIC_SHARED(unsigned, words);
  const int t = threadIdx.x;
  unsigned* const to = words + t * kWords;
  const unsigned* const from = x + t * kWords;
  if constexpr (kWords == 1) ptx::cp_async4(to, from, t < valid);
  if constexpr (kWords == 2) ptx::cp_async8(to, from, t < valid);
  if constexpr (kWords == 4) ptx::cp_async16(to, from, t < valid);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
  for (int i = 0; i < kWords; ++i) y[t * kWords + i] = words[t * kWords + i];
}

__global__ void reverse_kernel(const float* x, float* y) {
  DP_DYNAMIC_SHARED(float, row);
  DP_SHARED(float, halves, [2][4]);
  DP_SHARED(int, count, );
  const int t = threadIdx.x, last = static_cast<int>(blockDim.x) - 1;
  row[t] = x[t];
  if (t < 8) halves[t / 4][t % 4] = 0.5f;
  if (t == 0) count = last;
  __syncthreads();
  y[t] = row[count - t] + halves[1][3] - halves[0][0];
}

template <bool transposed>
__global__ void matrices_kernel(const unsigned short* rows, unsigned* out) {
  DP_SHARED(uint4, shared_rows, [32]);
  const int t = threadIdx.x;
  shared_rows[t] = reinterpret_cast<const uint4*>(rows)[t];
  __syncthreads();
  unsigned fragments[4];
  if constexpr (transposed) {
    ptx::ldmatrix_x4_trans(fragments, &shared_rows[t]);
  } else {
    ptx::ldmatrix_x4(fragments, &shared_rows[t]);
  }
  for (int i = 0; i < 4; ++i) out[4 * t + i] = fragments[i];
}

__global__ void mma_kernel(bool bfloat, const unsigned short* a, const unsigned short* b, float* d) {
  DP_SHARED(uint4, rows, [48]);  // 8 values each: both halves of 16 rows of a, then of 8 columns of b
  const int t = threadIdx.x;
  rows[t] = reinterpret_cast<const uint4*>(a)[t];
  if (t < 16) rows[32 + t] = reinterpret_cast<const uint4*>(b)[t];
  __syncthreads();
  unsigned of_a[4], of_b[4];
  ptx::ldmatrix_x4(of_a, &rows[t % 16 * 2 + t / 16]);
  ptx::ldmatrix_x4(of_b, &rows[32 + t % 8 * 2 + t / 8 % 2]);
  const unsigned pair[2] = {of_b[0], of_b[1]};
  float sums[4] = {};
  if (bfloat) {
    ptx::mma_m16n8k16_bf16(sums, of_a, pair);
  } else {
    ptx::mma_m16n8k16_f16(sums, of_a, pair);
  }
  for (int i = 0; i < 4; ++i) d[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = sums[i];
}

__global__ void pack_kernel(bool bfloat, const float* x, unsigned* out) {
  const int t = threadIdx.x;
  out[t] = bfloat ? ptx::pack_bf16(x[2 * t], x[2 * t + 1]) : ptx::pack_f16(x[2 * t], x[2 * t + 1]);
}

__global__ void unpack_kernel(const unsigned* pairs, float* out) {
  const int t = threadIdx.x;
  const float2 values = ptx::unpack_f16(pairs[t]);
  out[2 * t] = values.x, out[2 * t + 1] = values.y;
}

__global__ void math_kernel(float* out) {
  const float values[kMathValues] = {rsqrtf(4.0f),
                                     __expf(1.0f),
                                     __logf(2.0f),
                                     __fdividef(1.0f, 4.0f),
                                     __frcp_rn(8.0f),
                                     __saturatef(1.5f),
                                     __saturatef(-1.0f),
                                     __saturatef(NAN),
                                     __fmaf_rn(2.0f, 3.0f, 1.0f),
                                     __fadd_rn(1.0f, 2.0f),
                                     static_cast<float>(__float2int_rn(2.5f)),
                                     static_cast<float>(__float2int_rd(-1.5f)),
                                     static_cast<float>(__float2int_ru(-1.5f)),
                                     static_cast<float>(__float2int_rz(-1.5f)),
                                     static_cast<float>(__popc(0xf0f0u)),
                                     static_cast<float>(__clz(1)),
                                     static_cast<float>(__ffs(8)),
                                     static_cast<float>(__umulhi(0x80000000u, 6u)),
                                     __uint_as_float(__float_as_uint(1.25f)),
                                     __int_as_float(__float_as_int(-2.5f)),
                                     static_cast<float>(__mulhi(-2, 1)),
                                     static_cast<float>(max(3, 4)),
                                     fminf(3.0f, NAN),
                                     static_cast<float>(__umul64hi(1ull << 63, 4ull))};
  for (int i = 0; i < kMathValues; ++i) out[i] = values[i];
}

__global__ void trap_kernel() { __trap(); }

}  // namespace

void shuffle_lanes(Shuffle kind, const int* x, int* out, int threads, int selector, int width, cudaStream_t stream) {
  launch({"shuffle_kernel", 1, static_cast<unsigned>(threads), stream}, shuffle_kernel, static_cast<int>(kind), x, out,
         selector, width);
}
void vote_lanes(const int* x, unsigned* out, int threads, cudaStream_t stream) {
  launch({"vote_kernel", 1, static_cast<unsigned>(threads), stream}, vote_kernel, x, out);
}
void update_atomically(int* out, int threads, cudaStream_t stream) {
  launch({"atomics_kernel", 1, static_cast<unsigned>(threads), stream}, atomics_kernel, out);
}
void count_around(unsigned* counter, unsigned limit, int threads, cudaStream_t stream) {
  launch({"count_around_kernel", 1, static_cast<unsigned>(threads), stream}, count_around_kernel, counter, limit);
}
void add_doubles(double* sum, int threads, cudaStream_t stream) {
  launch({"add_doubles_kernel", 1, static_cast<unsigned>(threads), stream}, add_doubles_kernel, sum);
}
void write_places(int* out, dim3 grid, dim3 block, cudaStream_t stream) {
  launch({"places_kernel", grid, block, stream}, places_kernel, out);
}
void copy_asynchronously(const unsigned* x, unsigned* y, int bytes, int threads, int valid, cudaStream_t stream) {
  const auto kernel = bytes == 4 ? copy_kernel<1> : bytes == 8 ? copy_kernel<2> : copy_kernel<4>;
  const std::size_t shared = static_cast<std::size_t>(threads) * static_cast<std::size_t>(bytes);
  launch({"copy_kernel", 1, static_cast<unsigned>(threads), stream, shared}, kernel, x, y, valid);
}
void reverse_in_shared(const float* x, float* y, int threads, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(threads);
  launch({"reverse_kernel", 1, count, stream, count * sizeof(float)}, reverse_kernel, x, y);
}
void load_matrices(const unsigned short* rows, unsigned* out, bool transposed, cudaStream_t stream) {
  launch({"matrices_kernel", 1, 32, stream}, transposed ? matrices_kernel<true> : matrices_kernel<false>, rows, out);
}
void multiply_matrices(bool bfloat, const unsigned short* a, const unsigned short* b, float* d, cudaStream_t stream) {
  launch({"mma_kernel", 1, 32, stream}, mma_kernel, bfloat, a, b, d);
}
void pack_pairs(bool bfloat, const float* x, unsigned* out, int pairs, cudaStream_t stream) {
  launch({"pack_kernel", 1, static_cast<unsigned>(pairs), stream}, pack_kernel, bfloat, x, out);
}
void unpack_pairs(const unsigned* pairs, float* out, int count, cudaStream_t stream) {
  launch({"unpack_kernel", 1, static_cast<unsigned>(count), stream}, unpack_kernel, pairs, out);
}
void compute_math(float* out, cudaStream_t stream) { launch({"math_kernel", 1, 1, stream}, math_kernel, out); }
void trap(cudaStream_t stream) { launch({"trap_kernel", 1, 32, stream}, trap_kernel); }

}  // namespace dp::simt::test
