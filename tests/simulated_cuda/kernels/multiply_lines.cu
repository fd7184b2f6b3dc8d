#include "device_code.h"
#include "kernels/conv/cuda_warpgroup.h"
#include "ptx.h"
#include "simulated_cuda/kernels/multiply_lines.h"

namespace dp::simt::test {
namespace {

using namespace dp::kernels;
using namespace dp::kernels::cuda;

template <class Low, bool k_major_a, bool k_major_b>
__global__ void lines_kernel(const uint4* a, const uint4* b, float* d, BrokenRule broken) {
  DP_DYNAMIC_SHARED(uint4, shared);
  uint4* const rows = wgmma_aligned(shared);
  const int t = static_cast<int>(threadIdx.x);
  uint4* const rows_b = rows + kOperandRows * kRowChunks;
  for (int at = t; at < kOperandRows * kRowChunks; at += 128) {
    const int row = at / kRowChunks, place = row * kRowChunks + (at % kRowChunks ^ row % 8);
    ptx::cp_async16(rows + place, a + at);
    ptx::cp_async16(rows_b + place, b + at);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  if (broken != BrokenRule::proxy_fence) ptx::fence_async_proxy();
  __syncthreads();
  float sums[32] = {};
  const int first_row = broken == BrokenRule::same_operands && t / 32 == 1 ? 0 : kFirstRow;
  const auto operand = [first_row](const uint4* of, bool k_major) {
    return ptx::wgmma_descriptor(of + first_row * kRowChunks + (k_major ? kFirstK / 8 : 0));
  };
  if (broken != BrokenRule::fence) ptx::wgmma_fence();
  ptx::wgmma_m64n64k16<Low, k_major_a, k_major_b>(sums, operand(rows, k_major_a), operand(rows_b, k_major_b));
  ptx::wgmma_commit();
  if (broken != BrokenRule::wait) ptx::wgmma_wait<0>();
  ptx::fence_accumulators(sums);
  for (int i = 0; i < 32; ++i) {
    const int line = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
    d[line * 64 + column] = sums[i];
  }
}

template <class Low>
auto kernel_of(const WgmmaForm& form) {
  if (form.k_major_a) return form.k_major_b ? lines_kernel<Low, true, true> : lines_kernel<Low, true, false>;
  return form.k_major_b ? lines_kernel<Low, false, true> : lines_kernel<Low, false, false>;
}

template <class Low, bool k_major_b, int columns>
__global__ void registers_kernel(const uint4* a, const uint4* b, float* d, BrokenRule broken) {
  DP_DYNAMIC_SHARED(uint4, shared);
  uint4* const rows_b = wgmma_aligned(shared);
  uint4* const rows_a = rows_b + columns * kRowChunks;
  const int t = static_cast<int>(threadIdx.x), lane = t % 32;
  for (int at = t; at < (columns + 64) * kRowChunks; at += 128) {
    const int row = at / kRowChunks, place = row * kRowChunks + (at % kRowChunks ^ row % 8);
    ptx::cp_async16(rows_b + place, row < columns ? b + at : a + at - columns * kRowChunks);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::fence_async_proxy();
  __syncthreads();
  float sums[columns / 8][4] = {};
  unsigned fragments[4];
  ptx::ldmatrix_x4(fragments, rows_a + swizzled<kRowChunks>(t / 32 * 16 + lane % 16, kFirstK / 8 + lane / 16));
  ptx::wgmma_fence();
  ptx::wgmma_m64k16<Low, k_major_b>(sums, fragments,
                                    ptx::wgmma_descriptor(rows_b + (k_major_b ? kFirstK / 8 : 0), 16 * 128));
  ptx::wgmma_commit();
  if (broken == BrokenRule::wait)
    for (unsigned& fragment : fragments) fragment = 0;
  ptx::wgmma_wait<0>();
  for (auto& four : sums) ptx::fence_accumulators(four);
  for (int i = 0; i < columns / 2; ++i) {
    const int line = t / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[line * columns + column] = sums[i / 4][i % 4];
  }
}

template <class Low>
auto kernel_of(const WgmmaRegisterForm& form) {
  if (form.columns == 64) return form.k_major_b ? registers_kernel<Low, true, 64> : registers_kernel<Low, false, 64>;
  return form.k_major_b ? registers_kernel<Low, true, 128> : registers_kernel<Low, false, 128>;
}

}  // namespace

void multiply_registers(const WgmmaRegisterForm& form, const unsigned short* a, const unsigned short* b, float* d,
                        cudaStream_t stream) {
  launch({"registers_kernel", 1, 128, stream, static_cast<std::size_t>(form.columns + 64) * 128 + kWgmmaAlignment},
         form.bfloat ? kernel_of<BFloat16>(form) : kernel_of<Float16>(form), reinterpret_cast<const uint4*>(a),
         reinterpret_cast<const uint4*>(b), d, form.broken);
}

void multiply_lines(const WgmmaForm& form, const unsigned short* a, const unsigned short* b, float* d,
                    cudaStream_t stream) {
  launch({"lines_kernel", 1, 128, stream, 2 * kOperandRows * 128 + kWgmmaAlignment},
         form.bfloat ? kernel_of<BFloat16>(form) : kernel_of<Float16>(form), reinterpret_cast<const uint4*>(a),
         reinterpret_cast<const uint4*>(b), d, form.broken);
}

}  // namespace dp::simt::test
