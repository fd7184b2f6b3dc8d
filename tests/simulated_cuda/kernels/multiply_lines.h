// A test kernel with one wgmma.
#pragma once

#include <cuda_runtime_api.h>

namespace dp::simt::test {

inline constexpr int kOperandRows = 72, kFirstRow = 3, kFirstK = 16;

// The rule of wgmma that the kernel breaks.
enum class BrokenRule { none, fence, proxy_fence, wait, same_operands };

struct WgmmaForm {
  bool bfloat, k_major_a, k_major_b;
  BrokenRule broken = BrokenRule::none;
};

// d = a b. a and b are given as rows of 64 16-bit values. K-major: the operand's lines are the rows from kFirstRow on,
// its 16 k's start at kFirstK. Otherwise its k's are the 16 rows from kFirstRow on.
void multiply_lines(const WgmmaForm& form, const unsigned short* a, const unsigned short* b, float* d,
                    cudaStream_t stream);

}  // namespace dp::simt::test
