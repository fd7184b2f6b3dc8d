// How tensor cores add products. NVIDIA does not document it. This model follows measurements: M. Fasi et al.,
// "Numerical behavior of NVIDIA tensor cores" (2021), F. Khattak and M. Mikaitis, "Accurate models of NVIDIA tensor
// cores" (2025), and the probes of microsoft/MMA-Sim.
//
// The accumulator and several products are added at once. The products are exact. All summands are aligned to the
// largest exponent among them and truncated (not rounded) a few bits below float32's last bit. The exponent of a
// product is the sum of its factors' exponents. The sum of the aligned summands is exact. It is truncated to float32.
// sm_80 to sm_89: two sums of 8 products, 24 bits after the binary point. sm_90 and later: one sum of 16 products, 25
// bits.
#pragma once

namespace dp::simt {

struct MmaOperands {
  float a[16][16];
  float b[16][8];
  float d[16][8];         // the accumulator, and the result
  int smallest_exponent;  // of a normal number of the type of a and b
};

// d += a b. simulation().mma_sums selects the algorithm.
void multiply_and_add(MmaOperands& operands);

}  // namespace dp::simt
