// How tensor cores add products. NVIDIA does not document it; this is what was measured: M. Fasi et al., "Numerical behavior of
// NVIDIA tensor cores" (2021), F. Khattak and M. Mikaitis, "Accurate models of NVIDIA tensor cores" (2025), and the probes of
// microsoft/MMA-Sim.
//
// A few products and the accumulator are added at once. The products are exact. All summands are shifted to the largest exponent
// among them, the exponent of a product being the sum of its factors', and cut off (not rounded) a few bits below float32's last
// one; their sum is exact, and is cut off to float32. sm_80 to sm_89: two sums of 8 products, 24 bits behind the binary point;
// sm_90 and later: one of 16, 25 bits.
#pragma once

namespace dp::simt {

struct MmaOperands {
  float a[16][16];
  float b[16][8];
  float d[16][8];         // the accumulator, and the result
  int smallest_exponent;  // of a normal number of the type of a and b
};

// d += a b, by simulation().mma_sums.
void multiply_and_add(MmaOperands& operands);

}  // namespace dp::simt
