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

// The same for a in registers: a has 64 rows, b has `columns` columns, 64 or 128. broken: none, or wait.
struct WgmmaRegisterForm {
  bool bfloat, k_major_b;
  int columns;
  BrokenRule broken = BrokenRule::none;
};

// d = a b. a and b are given as rows of 64 16-bit values. K-major: the operand's lines are the rows from kFirstRow on,
// its 16 k's start at kFirstK. Otherwise its k's are the 16 rows from kFirstRow on.
void multiply_lines(const WgmmaForm& form, const unsigned short* a, const unsigned short* b, float* d,
                    cudaStream_t stream);

// K-major b: columns are rows, as above but from row 0 on. Otherwise row 16 i + k contains value k of columns 64 i to
// 64 i + 63. If the wait is broken, the kernel changes the registers of a before it.
void multiply_registers(const WgmmaRegisterForm& form, const unsigned short* a, const unsigned short* b, float* d,
                        cudaStream_t stream);

}  // namespace dp::simt::test
