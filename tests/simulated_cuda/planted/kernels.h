// Kernels with a mistake that can be switched on.
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
// total[0] = kBlocks * kRow, by the last block to count; parts has as many elements, count[0] is 0.
void count_early(bool planted, float* parts, unsigned* count, float* total, cudaStream_t stream);
// Each of kBlocks rows of x backwards; scratch is as large.
void reverse_by_scratch(bool planted, const float* x, float* scratch, float* y, cudaStream_t stream);
// y[block] = 2 for kBlocks blocks; arrived[0] is 0.
void spin(bool planted, unsigned* arrived, float* y, cudaStream_t stream);
// y[i] = x[i] + 1 for kRow elements, by fours; x has one element more.
void add_one_to_fours(bool planted, const float* x, float* y, cudaStream_t stream);
// y = 2 for kRow elements: with so many bytes of dynamic shared memory, asked for or not; with dynamic and static shared memory; and
// with so many threads, of a kernel that is bounded to kRow or not at all.
cudaError_t use_dynamic_shared(bool allowed, std::size_t bytes, float* y, cudaStream_t stream);
void use_both_shared(bool planted, float* y, cudaStream_t stream);
void use_threads(bool bounded, unsigned threads, float* y, cudaStream_t stream);
// Attributes of their functions: sharedSizeBytes, maxThreadsPerBlock.
std::size_t static_shared_of_both();
int threads_of(bool bounded);
// y[0] = 1 + 45 * 2^-25, as far as tensor cores have it.
void sum_by_mma(float* y, cudaStream_t stream);
// y[i] = x[i] + 1.
void add_one(const float* x, float* y, int n, cudaStream_t stream);
// y[0] = 2, by calls so deep, of half a KiB each.
void run_deep(int depth, float* y, cudaStream_t stream);
// y[i] = x[0][i] + 1: the kernel is given only where the pointer lies.
void add_one_behind(const float* const* x, float* y, int n, cudaStream_t stream);

}  // namespace dp::simt::test
