#include "simt/planted/kernels.h"

#include "device_code.h"
#include "ptx.h"

namespace dp::simt::test {
namespace {

namespace ptx = kernels::cuda::ptx;
using kernels::cuda::launch;
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

// One buffer for all steps, copied into asynchronously.
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

__global__ void add_one_kernel(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = x[i] + 1;
}

__global__ void add_one_behind_kernel(const float* const* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = x[0][i] + 1;
}

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

void add_one(const float* x, float* y, int n, cudaStream_t stream) {
  launch({"add_one_kernel", kernels::cuda::blocks_for(n, 64), 64, stream}, add_one_kernel, x, y, n);
}

void add_one_behind(const float* const* x, float* y, int n, cudaStream_t stream) {
  launch({"add_one_behind_kernel", kernels::cuda::blocks_for(n, 64), 64, stream}, add_one_behind_kernel, x, y, n);
}

}  // namespace dp::simt::test
