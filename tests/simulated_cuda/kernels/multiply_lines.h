// A tiny kernel for the products of warpgroups.
#pragma once

#include <cuda_runtime_api.h>

namespace dp::simt::test {

inline constexpr int kOperandRows = 72, kFirstRow = 3, kFirstK = 16;

// What the kernel leaves out.
enum class LeftOut { nothing, fence, publication, wait };

struct WarpgroupForm {
  bool bfloat, along_a, along_b;
  LeftOut left_out = LeftOut::nothing;
};

// d = a b^T of 64 x 64 lines, from rows of 64 16-bit values. Along: the lines are the rows from kFirstRow on, with 16
// k's from kFirstK on. Across: the k's are the 16 rows from kFirstRow on.
void multiply_lines(const WarpgroupForm& form, const unsigned short* a, const unsigned short* b, float* d,
                    cudaStream_t stream);

}  // namespace dp::simt::test
