// Kernels with a mistake that can be switched on.
#pragma once

#include <cuda_runtime_api.h>

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
inline constexpr int kRow = 64;    // threads of a block
inline constexpr int kSteps = 3;   // rows of x that the kernels read
inline constexpr int kBlocks = 3;  // of those that have more than one

// y[t] from x (kSteps rows of kRow), in one block; what it should be says expected_row().
void run_row(KernelBug bug, bool planted, const float* x, float* y, cudaStream_t stream);
float expected_row(KernelBug bug, const float* x, int t);

// sum[0] += 1 by each of kBlocks blocks.
void count_blocks(bool planted, float* sum, cudaStream_t stream);
// total[0] = the sum of 1, 2 .. kBlocks, by the last block to count; parts has kBlocks elements, count[0] is 0.
void sum_by_last_block(bool planted, float* parts, unsigned* count, float* total, cudaStream_t stream);
// y[i] = x[i] + 1.
void add_one(const float* x, float* y, int n, cudaStream_t stream);
// y[i] = x[0][i] + 1: the kernel is given only where the pointer lies.
void add_one_behind(const float* const* x, float* y, int n, cudaStream_t stream);

}  // namespace dp::simt::test
