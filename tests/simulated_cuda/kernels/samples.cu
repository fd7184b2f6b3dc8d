#include "simulated_cuda/kernels/samples.h"

#include "device_code.h"

namespace dp::simt::test {
namespace {

using bf16 = __nv_bfloat16;
constexpr unsigned kAll = 0xffffffffu;

__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAll, value, distance);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(kAll, value, distance));
  return value;
}

// A block covers 64 channels with eight threads per row, eight channels each.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) channel_sums_kernel(const bf16* __restrict__ x, float* __restrict__ sums,
                                                                float* __restrict__ squares, int pixels, int channels) {
  constexpr int kWarps = kThreads / 32;
  DP_SHARED(float, partial, [2][kWarps][64]);
  const int group = threadIdx.x % 8, first = blockIdx.x * 64 + group * 8;
  float s[8] = {}, q[8] = {};
  for (int p = blockIdx.y * (kThreads / 8) + threadIdx.x / 8; p < pixels; p += gridDim.y * (kThreads / 8)) {
    const uint4 packed = __ldg(reinterpret_cast<const uint4*>(x + static_cast<size_t>(p) * channels + first));
    const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = __uint_as_float(pairs[i] << 16), high = __uint_as_float(pairs[i] & 0xffff0000u);
      s[2 * i] += low;
      q[2 * i] += low * low;
      s[2 * i + 1] += high;
      q[2 * i + 1] += high * high;
    }
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    for (int distance = 8; distance < 32; distance *= 2) {  // lanes with the same channels
      s[i] += __shfl_xor_sync(kAll, s[i], distance);
      q[i] += __shfl_xor_sync(kAll, q[i], distance);
    }
    if (lane < 8) {
      partial[0][warp][group * 8 + i] = s[i];
      partial[1][warp][group * 8 + i] = q[i];
    }
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    float sum = 0, square = 0;
    for (int w = 0; w < kWarps; ++w) {
      sum += partial[0][w][threadIdx.x];
      square += partial[1][w][threadIdx.x];
    }
    atomicAdd(&sums[blockIdx.x * 64 + threadIdx.x], sum);
    atomicAdd(&squares[blockIdx.x * 64 + threadIdx.x], square);
  }
}

// Tile: 64x64 of c per block, 4x4 per thread, 16 of k per step, double-buffered.
__global__ void __launch_bounds__(256) matrix_product_kernel(const float* __restrict__ a, const float* __restrict__ b,
                                                             float* __restrict__ c, int m, int n, int k) {
  DP_SHARED(float, a_tile, [2][16][68]);
  DP_SHARED(float, b_tile, [2][16][68]);
  const int t = threadIdx.x, row0 = blockIdx.y * 64, column0 = blockIdx.x * 64;
  const int a_row = t / 4, a_k = t % 4 * 4, b_k = t / 16, b_column = t % 16 * 4;
  float sums[4][4] = {};
  float4 a_next, b_next;
  const auto load = [&](int k0) {
    const float4 zero = make_float4(0, 0, 0, 0);
    const bool a_inside = row0 + a_row < m && k0 + a_k < k, b_inside = column0 + b_column < n && k0 + b_k < k;
    a_next = a_inside ? *reinterpret_cast<const float4*>(&a[static_cast<size_t>(row0 + a_row) * k + k0 + a_k]) : zero;
    b_next =
        b_inside ? *reinterpret_cast<const float4*>(&b[static_cast<size_t>(k0 + b_k) * n + column0 + b_column]) : zero;
  };
  const auto store = [&](int buffer) {
    a_tile[buffer][a_k][a_row] = a_next.x;
    a_tile[buffer][a_k + 1][a_row] = a_next.y;
    a_tile[buffer][a_k + 2][a_row] = a_next.z;
    a_tile[buffer][a_k + 3][a_row] = a_next.w;
    *reinterpret_cast<float4*>(&b_tile[buffer][b_k][b_column]) = b_next;
  };
  load(0);
  store(0);
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    const bool more = k0 + 16 < k;
    if (more) load(k0 + 16);
    for (int i = 0; i < 16; ++i) {
      const float4 av = *reinterpret_cast<const float4*>(&a_tile[buffer][i][t / 16 * 4]);
      const float4 bv = *reinterpret_cast<const float4*>(&b_tile[buffer][i][t % 16 * 4]);
      const float as[4] = {av.x, av.y, av.z, av.w}, bs[4] = {bv.x, bv.y, bv.z, bv.w};
      for (int y = 0; y < 4; ++y)
        for (int x = 0; x < 4; ++x) sums[y][x] += as[y] * bs[x];
    }
    if (more) store(buffer ^ 1);
    __syncthreads();
    buffer ^= 1;
  }
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 4; ++x) {
      const int row = row0 + t / 16 * 4 + y, column = column0 + t % 16 * 4 + x;
      if (row < m && column < n) c[static_cast<size_t>(row) * n + column] = sums[y][x];
    }
  }
}

__global__ void __launch_bounds__(128)
    cross_entropy_kernel(const float* __restrict__ logits, const int* __restrict__ labels, float* __restrict__ losses,
                         float* __restrict__ gradient, int rows, int classes) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // whole warps return, and no barrier follows
  const float* const x = logits + static_cast<size_t>(row) * classes;
  float highest = -INFINITY, sum = 0;
  for (int i = lane; i < classes; i += 32) highest = fmaxf(highest, x[i]);
  highest = warp_max(highest);
  for (int i = lane; i < classes; i += 32) sum += __expf(x[i] - highest);
  sum = warp_sum(sum);
  const int label = labels[row];
  for (int i = lane; i < classes; i += 32)
    gradient[static_cast<size_t>(row) * classes + i] = __expf(x[i] - highest) / sum - (i == label ? 1.0f : 0.0f);
  if (lane == 0) losses[row] = highest + __logf(sum) - x[label];
}

}  // namespace

void channel_sums(const bf16* x, float* sums, float* squares, int pixels, int channels, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(channels) / 64, 3);
  kernels::cuda::launch({"channel_sums_kernel", grid, 256, stream}, channel_sums_kernel<256>, x, sums, squares, pixels,
                        channels);
}

void matrix_product(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream) {
  const dim3 grid(kernels::cuda::blocks_for(n, 64), kernels::cuda::blocks_for(m, 64));
  kernels::cuda::launch({"matrix_product_kernel", grid, 256, stream}, matrix_product_kernel, a, b, c, m, n, k);
}

void cross_entropy(const float* logits, const int* labels, float* losses, float* gradient, int rows, int classes,
                   cudaStream_t stream) {
  kernels::cuda::launch({"cross_entropy_kernel", kernels::cuda::blocks_for(rows, 4), 128, stream}, cross_entropy_kernel,
                        logits, labels, losses, gradient, rows, classes);
}

}  // namespace dp::simt::test
