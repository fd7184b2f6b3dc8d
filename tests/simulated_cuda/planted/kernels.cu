#include "simulated_cuda/planted/kernels.h"

#include "device_code.h"
#include "ptx.h"

namespace dp::simt::test {
namespace {

namespace ptx = kernels::cuda::ptx;
using kernels::cuda::allow_shared;
using kernels::cuda::launch;
using kernels::cuda::launch_kernel;
constexpr unsigned kAll = 0xffffffffu;

__global__ void missing_barrier_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  row[t] = x[t];
  if (!planted) __syncthreads();
  y[t] = row[kRow - 1 - t];
}

__global__ void missing_warp_barrier_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  row[t] = x[t];
  if (!planted) __syncwarp();
  y[t] = row[t ^ 31];
}

__global__ void outside_shared_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  row[t] = x[t];
  if (planted && t == 0) row[blockDim.x] = x[t];
  y[t] = row[t];
}

__global__ void unset_shared_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  if (!planted || t > 0) row[t] = x[t];
  __syncthreads();
  y[t] = row[kRow - 1 - t];
}

__global__ void wrong_mask_kernel(bool planted, const float* x, float* y) {
  const int t = threadIdx.x;
  y[t] = __shfl_xor_sync(planted ? kAll >> 16 : kAll, x[t], 1);
}

__global__ void missing_lanes_kernel(bool planted, const float* x, float* y) {
  const int t = threadIdx.x;
  y[t] = x[t];
  if (!planted || t % 32 < 31) y[t] = __shfl_xor_sync(kAll, x[t], 1);
}

__global__ void early_return_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  row[t] = x[t];
  if (planted && t >= 32) return;
  __syncthreads();
  y[t] = row[t];
}

__global__ void two_barriers_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  row[t] = x[t];
  if (planted && t < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[t] = row[kRow - 1 - t];
}

__global__ void missing_copy_wait_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  ptx::cp_async4(&row[t], &x[t], true);
  ptx::cp_async_commit();
  if (!planted) ptx::cp_async_wait<0>();
  __syncthreads();
  y[t] = row[kRow - 1 - t];
}

// One buffer for all steps, filled by asynchronous copies.
__global__ void missing_trailing_barrier_kernel(bool planted, const float* x, float* y) {
  DP_SHARED(float, row, [kRow]);
  const int t = threadIdx.x;
  float sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    ptx::cp_async4(&row[t], &x[step * kRow + t], true);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    sum += row[kRow - 1 - t];
    if (!planted) __syncthreads();
  }
  y[t] = sum;
}

__global__ void count_blocks_kernel(bool planted, float* sum) {
  if (threadIdx.x != 0) return;
  if (planted) {
    sum[0] = sum[0] + 1;
  } else {
    atomicAdd(sum, 1.0f);
  }
}

__global__ void sum_by_last_block_kernel(bool planted, float* parts, unsigned* count, float* total) {
  DP_SHARED(bool, last, );
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = static_cast<float>(blockIdx.x + 1);
    if (!planted) __threadfence();
    last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 1) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
  total[0] = sum;
}

// The last block to count adds the values of all blocks' threads.
__global__ void early_count_kernel(bool planted, float* parts, unsigned* count, float* total) {
  DP_SHARED(bool, last, );
  const unsigned t = threadIdx.x;
  parts[blockIdx.x * blockDim.x + t] = 1;
  __threadfence();
  if (!planted) __syncthreads();
  if (t == 0) last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last || t != 1) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x * blockDim.x; ++i) sum += parts[i];
  total[0] = sum;
}

// y: each block's row of x reversed, through global memory.
__global__ void scratch_kernel(bool planted, const float* x, float* scratch, float* y) {
  const unsigned t = threadIdx.x, first = blockIdx.x * blockDim.x;
  float* const own = planted ? scratch : scratch + first;
  own[t] = x[first + t];
  __syncthreads();
  y[first + t] = own[blockDim.x - 1 - t];
}

__global__ void spinning_kernel(bool planted, unsigned* arrived, float* y) {
  atomicAdd(arrived, 1u);
  while (planted && *static_cast<volatile unsigned*>(arrived) < gridDim.x) {
  }
  y[blockIdx.x] = 2;
}

__global__ void misaligned_kernel(bool planted, const float* x, float* y) {
  const int t = threadIdx.x;
  const float4 four = reinterpret_cast<const float4*>(x + (planted ? 1 : 0))[t];
  reinterpret_cast<float4*>(y)[t] = make_float4(four.x + 1, four.y + 1, four.z + 1, four.w + 1);
}

__global__ void dynamic_shared_kernel(float* y) {
  DP_DYNAMIC_SHARED(float, row);
  row[threadIdx.x] = 2;
  y[threadIdx.x] = row[threadIdx.x];
}

template <int kFloats>
__global__ void both_shared_kernel(float* y) {
  DP_DYNAMIC_SHARED(float, row);
  DP_SHARED(float, more, [kFloats]);
  row[threadIdx.x] = 2;
  if (threadIdx.x == 0) more[0] = row[0];
  y[threadIdx.x] = row[threadIdx.x];
}

__global__ void __launch_bounds__(kRow) bounded_kernel(float* y) { y[threadIdx.x] = 2; }
__global__ void unbounded_kernel(float* y) { y[threadIdx.x] = 2; }

// y[0]: the sum of 1 and 15 products of 3 * 2^-25, by one mma.
__global__ void sum_by_mma_kernel(float* y) {
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
  const auto value = [](int column) { return column == 0 ? 1.0f : 0x3p-25f; };
  unsigned a[4];
  for (int i = 0; i < 4; ++i) a[i] = ptx::pack_bf16(value(pair + i / 2 * 8), value(pair + 1 + i / 2 * 8));
  const unsigned ones = ptx::pack_bf16(1, 1), b[2] = {ones, ones};
  float sums[4] = {};
  ptx::mma_m16n8k16_bf16(sums, a, b);
  if (threadIdx.x == 0) y[0] = sums[0];
}

__global__ void add_one_kernel(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = x[i] + 1;
}

__global__ void add_one_behind_kernel(const float* const* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = x[0][i] + 1;
}

__device__ float grow(int depth, float x) {
  volatile float frame[128] = {};
  frame[depth % 128] = x;
  if (depth == 0) return frame[0];
  return grow(depth - 1, x) + frame[(depth + 1) % 128];
}

__global__ void deep_kernel(int depth, float* y) { y[0] = grow(depth, 2); }

using RowKernel = void (*)(bool, const float*, float*);
struct NamedKernel {
  const char* name;
  RowKernel kernel;
};
NamedKernel kernel_of(KernelBug bug) {
  switch (bug) {
    case KernelBug::missing_barrier: return {"missing_barrier_kernel", missing_barrier_kernel};
    case KernelBug::missing_warp_barrier: return {"missing_warp_barrier_kernel", missing_warp_barrier_kernel};
    case KernelBug::outside_shared: return {"outside_shared_kernel", outside_shared_kernel};
    case KernelBug::unset_shared: return {"unset_shared_kernel", unset_shared_kernel};
    case KernelBug::wrong_mask: return {"wrong_mask_kernel", wrong_mask_kernel};
    case KernelBug::missing_lanes: return {"missing_lanes_kernel", missing_lanes_kernel};
    case KernelBug::early_return: return {"early_return_kernel", early_return_kernel};
    case KernelBug::two_barriers: return {"two_barriers_kernel", two_barriers_kernel};
    case KernelBug::missing_copy_wait: return {"missing_copy_wait_kernel", missing_copy_wait_kernel};
    case KernelBug::missing_trailing_barrier: break;
  }
  return {"missing_trailing_barrier_kernel", missing_trailing_barrier_kernel};
}

}  // namespace

void run_row(KernelBug bug, bool planted, const float* x, float* y, cudaStream_t stream) {
  const NamedKernel named = kernel_of(bug);
  launch({named.name, 1, kRow, stream}, named.kernel, planted, x, y);
}

float expected_row(KernelBug bug, const float* x, int t) {
  switch (bug) {
    case KernelBug::outside_shared:
    case KernelBug::early_return: return x[t];
    case KernelBug::wrong_mask:
    case KernelBug::missing_lanes: return x[t ^ 1];
    case KernelBug::missing_warp_barrier: return x[t ^ 31];
    case KernelBug::missing_trailing_barrier: {
      float sum = 0;
      for (int step = 0; step < kSteps; ++step) sum += x[step * kRow + kRow - 1 - t];
      return sum;
    }
    default: return x[kRow - 1 - t];
  }
}

void count_blocks(bool planted, float* sum, cudaStream_t stream) {
  launch({"count_blocks_kernel", kBlocks, 32, stream}, count_blocks_kernel, planted, sum);
}

void sum_by_last_block(bool planted, float* parts, unsigned* count, float* total, cudaStream_t stream) {
  launch({"sum_by_last_block_kernel", kBlocks, 32, stream}, sum_by_last_block_kernel, planted, parts, count, total);
}

void count_early(bool planted, float* parts, unsigned* count, float* total, cudaStream_t stream) {
  launch({"early_count_kernel", kBlocks, kRow, stream}, early_count_kernel, planted, parts, count, total);
}
void reverse_by_scratch(bool planted, const float* x, float* scratch, float* y, cudaStream_t stream) {
  launch({"scratch_kernel", kBlocks, kRow, stream}, scratch_kernel, planted, x, scratch, y);
}
void spin(bool planted, unsigned* arrived, float* y, cudaStream_t stream) {
  launch({"spinning_kernel", kBlocks, 1, stream}, spinning_kernel, planted, arrived, y);
}
void add_one_to_fours(bool planted, const float* x, float* y, cudaStream_t stream) {
  launch({"misaligned_kernel", 1, kRow / 4, stream}, misaligned_kernel, planted, x, y);
}
cudaError_t use_dynamic_shared(bool allowed, std::size_t bytes, float* y, cudaStream_t stream) {
  const kernels::cuda::Launch where{"dynamic_shared_kernel", 1, kRow, stream, bytes};
  if (allowed) allow_shared(reinterpret_cast<const void*>(&dynamic_shared_kernel), where);
  return launch_kernel(where, dynamic_shared_kernel, y);
}
void use_both_shared(bool planted, float* y, cudaStream_t stream) {
  constexpr int kMuch = 20 * 1024 / sizeof(float);
  launch({"both_shared_kernel", 1, kRow, stream, 32 * 1024},
         planted ? both_shared_kernel<kMuch> : both_shared_kernel<1>, y);
}
void use_threads(bool bounded, unsigned threads, float* y, cudaStream_t stream) {
  launch({bounded ? "bounded_kernel" : "unbounded_kernel", 1, threads, stream},
         bounded ? bounded_kernel : unbounded_kernel, y);
}
std::size_t static_shared_of_both() {
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&both_shared_kernel<1>));
  return attributes.sharedSizeBytes;
}
int threads_of(bool bounded) {
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(bounded ? &bounded_kernel : &unbounded_kernel));
  return attributes.maxThreadsPerBlock;
}
void sum_by_mma(float* y, cudaStream_t stream) { launch({"sum_by_mma_kernel", 1, 32, stream}, sum_by_mma_kernel, y); }

void add_one(const float* x, float* y, int n, cudaStream_t stream) {
  launch({"add_one_kernel", kernels::cuda::blocks_for(n, 64), 64, stream}, add_one_kernel, x, y, n);
}

void run_deep(int depth, float* y, cudaStream_t stream) {
  launch({"deep_kernel", 1, 1, stream}, deep_kernel, depth, y);
}

void add_one_behind(const float* const* x, float* y, int n, cudaStream_t stream) {
  launch({"add_one_behind_kernel", kernels::cuda::blocks_for(n, 64), 64, stream}, add_one_behind_kernel, x, y, n);
}

}  // namespace dp::simt::test
