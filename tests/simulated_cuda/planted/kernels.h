// Kernels with a bug that can be switched on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dp::simt::test {

enum class KernelBug {
  missing_barrier,
  missing_warp_barrier,
  outside_shared,
  unset_shared,
  wrong_mask,
  missing_lanes,
  early_return,
  two_barriers,
  missing_copy_wait,
  missing_trailing_barrier,
};
inline constexpr int kRow = 64;    // threads per block
inline constexpr int kSteps = 3;   // rows of x that the kernels read
inline constexpr int kBlocks = 3;  // of the multi-block kernels

// Computes y[t] from x (kSteps rows of kRow) in one block. expected_row() returns the correct value.
void run_row(KernelBug bug, bool planted, const float* x, float* y, cudaStream_t stream);
float expected_row(KernelBug bug, const float* x, int t);

// Each of kBlocks blocks adds 1 to sum[0].
void count_blocks(bool planted, float* sum, cudaStream_t stream);
// total[0] = 1 + 2 + .. + kBlocks, computed by the last block to count. parts: kBlocks elements; count[0]: initially 0.
void sum_by_last_block(bool planted, float* parts, unsigned* count, float* total, cudaStream_t stream);
// total[0] = kBlocks * kRow, computed by the last block to count. parts: kBlocks * kRow elements; count[0]: initially
// 0.
void count_early(bool planted, float* parts, unsigned* count, float* total, cudaStream_t stream);
// Reverses each of kBlocks rows of x. scratch has the size of x.
void reverse_by_scratch(bool planted, const float* x, float* scratch, float* y, cudaStream_t stream);
// y[block] = 2 for kBlocks blocks. arrived[0]: initially 0.
void spin(bool planted, unsigned* arrived, float* y, cudaStream_t stream);
// y[i] = x[i] + 1 for kRow elements, four at a time. x has one more element.
void add_one_to_fours(bool planted, const float* x, float* y, cudaStream_t stream);
// y = 2 for kRow elements. First: with `bytes` of dynamic shared memory, opted in or not. Second: with dynamic and
// static shared memory. Third: with `threads` threads, in a kernel with launch bounds of kRow or without.
cudaError_t use_dynamic_shared(bool allowed, std::size_t bytes, float* y, cudaStream_t stream);
void use_both_shared(bool planted, float* y, cudaStream_t stream);
void use_threads(bool bounded, unsigned threads, float* y, cudaStream_t stream);
// Attributes of their functions: sharedSizeBytes, maxThreadsPerBlock.
std::size_t static_shared_of_both();
int threads_of(bool bounded);
// y[0] = 1 + 45 * 2^-25, to the precision of tensor cores.
void sum_by_mma(float* y, cudaStream_t stream);
// y[i] = x[i] + 1.
void add_one(const float* x, float* y, int n, cudaStream_t stream);
// y[0] = 2, by recursion of this depth with frames of 512 bytes.
void run_deep(int depth, float* y, cudaStream_t stream);
// y[i] = x[0][i] + 1. The kernel's argument points to the pointer.
void add_one_behind(const float* const* x, float* y, int n, cudaStream_t stream);

}  // namespace dp::simt::test
