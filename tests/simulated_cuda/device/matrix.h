// ldmatrix, mma, and pairs of 16-bit floats. Fragments are distributed over the 32 lanes as in the PTX manual ("Matrix
// fragments for mma.m16n8k16").
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/low_float.h"
#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/emulator/tensor_core.h"

namespace dp::kernels::cuda::ptx {

struct MmaFragments {
  float* d;
  const unsigned* a;
  const unsigned* b;
};

template <class Low>
DP_SIMT_UNSEEN float low_at(unsigned pair, int high) {
  return to_float(Low{static_cast<std::uint16_t>(high != 0 ? pair >> 16 : pair)});
}
template <class Low>
DP_SIMT_UNSEEN unsigned pack(float low, float high) {
  return from_float<Low>(low).bits | static_cast<unsigned>(from_float<Low>(high).bits) << 16;
}

template <class Low>
DP_SIMT_UNSEEN void combine_mma(void* const* lanes, unsigned mask, simt::Block& block, simt::Site site) {
  if (mask != simt::kFullWarp) block.fail("mma at %s:%d needs a whole warp", site.name(), site.line);
  simt::MmaOperands m;
  m.smallest_exponent = std::is_same_v<Low, Float16> ? -14 : -126;
  for (int lane = 0; lane < 32; ++lane) {
    const auto& f = *static_cast<const MmaFragments*>(lanes[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) m.a[group + i % 2 * 8][pair + half + i / 2 * 8] = low_at<Low>(f.a[i], half);
      for (int i = 0; i < 2; ++i) m.b[pair + half + i * 8][group] = low_at<Low>(f.b[i], half);
    }
    for (int i = 0; i < 4; ++i) m.d[group + i / 2 * 8][pair + i % 2] = f.d[i];
  }
  simt::multiply_and_add(m);
  for (int lane = 0; lane < 32; ++lane) {
    float* const out = static_cast<const MmaFragments*>(lanes[lane])->d;
    for (int i = 0; i < 4; ++i) out[i] = m.d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

// d += a b, with the rounding of simulated_cuda/emulator/tensor_core.h. a: 16x16, row-major; b: 16x8, column-major.
DP_SIMT_UNSEEN inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                             DP_SIMT_CALLER) {
  MmaFragments fragments{d, a, b};
  simt::running_block->collective(simt::kFullWarp, &fragments, &combine_mma<BFloat16>, DP_SIMT_SITE);
}
DP_SIMT_UNSEEN inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                            DP_SIMT_CALLER) {
  MmaFragments fragments{d, a, b};
  simt::running_block->collective(simt::kFullWarp, &fragments, &combine_mma<Float16>, DP_SIMT_SITE);
}

// Two floats rounded to nearest even, `low` in the lower half.
DP_SIMT_UNSEEN inline unsigned pack_bf16(float low, float high) { return pack<BFloat16>(low, high); }
DP_SIMT_UNSEEN inline unsigned pack_f16(float low, float high) { return pack<Float16>(low, high); }

// The two float16 values of a pair, the lower half first.
DP_SIMT_UNSEEN inline float2 unpack_f16(unsigned pair) { return {low_at<Float16>(pair, 0), low_at<Float16>(pair, 1)}; }

struct MatrixRows {
  unsigned* fragments;
  const void* row;
};

template <bool transposed>
DP_SIMT_UNSEEN void combine_ldmatrix(void* const* lanes, unsigned mask, simt::Block& block, simt::Site site) {
  if (mask != simt::kFullWarp) block.fail("ldmatrix at %s:%d needs a whole warp", site.name(), site.line);
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t values[8][8];  // lanes 8 i to 8 i + 7 pass the rows of matrix i
    for (unsigned row = 0; row < 8; ++row) {
      const unsigned lane = matrix * 8 + row;
      const void* const from = static_cast<const MatrixRows*>(lanes[lane])->row;
      if (simt::detector != nullptr)
        simt::detector->access(from, 16, simt::Access::read, block.thread() / simt::kWarp * simt::kWarp + lane,
                               nullptr);
      std::memcpy(values[row], from, 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      const unsigned low = transposed ? values[j][i] : values[i][j];
      const unsigned high = transposed ? values[j + 1][i] : values[i][j + 1];
      static_cast<const MatrixRows*>(lanes[lane])->fragments[matrix] = low | high << 16;
    }
  }
}

template <bool transposed>
DP_SIMT_UNSEEN void load_matrices(unsigned (&fragments)[4], const void* row, simt::Site site) {
  simt::Block& block = *simt::running_block;
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    block.fail("the row of ldmatrix at %s:%d does not lie at a multiple of 16", site.name(), site.line);
  if (!block.shared().inside_array(row, 16))
    block.fail("ldmatrix at %s:%d reads outside the shared arrays", site.name(), site.line);
  MatrixRows rows{fragments, row};
  block.collective(simt::kFullWarp, &rows, &combine_ldmatrix<transposed>, site);
}

// Four 8x8 matrices of 16-bit values. Each lane passes the address of a row.
inline void ldmatrix_x4(unsigned (&fragments)[4], const void* row, DP_SIMT_CALLER) {
  load_matrices<false>(fragments, row, DP_SIMT_SITE);
}
inline void ldmatrix_x4_trans(unsigned (&fragments)[4], const void* row, DP_SIMT_CALLER) {
  load_matrices<true>(fragments, row, DP_SIMT_SITE);
}

}  // namespace dp::kernels::cuda::ptx
