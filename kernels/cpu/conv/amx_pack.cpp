#include "kernels/cpu/conv/amx_pack.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define DP_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace dp::kernels::amx {
namespace {

typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));

// Indices into two rows of 16 elements.
constexpr int lower_half(int distance, int c) { return (c & distance) == 0 ? c : 16 + c - distance; }
constexpr int upper_half(int distance, int c) { return (c & distance) == 0 ? c + distance : 16 + c; }

// One of four steps of a 16 x 16 transposition. In each block of 2 * kDistance x 2 * kDistance elements, it exchanges
// the upper right quarter with the lower left one.
template <int kDistance>
DP_AVX512 inline void swap_halves(Halves (&rows)[16]) {
#define DP_ALL(f)                                                                                             \
  f(kDistance, 0), f(kDistance, 1), f(kDistance, 2), f(kDistance, 3), f(kDistance, 4), f(kDistance, 5),       \
      f(kDistance, 6), f(kDistance, 7), f(kDistance, 8), f(kDistance, 9), f(kDistance, 10), f(kDistance, 11), \
      f(kDistance, 12), f(kDistance, 13), f(kDistance, 14), f(kDistance, 15)
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & kDistance) != 0) continue;
    const Halves a = rows[i], b = rows[i + kDistance];
    rows[i] = __builtin_shufflevector(a, b, DP_ALL(lower_half));
    rows[i + kDistance] = __builtin_shufflevector(a, b, DP_ALL(upper_half));
  }
#undef DP_ALL
}

// A mask of the first `count` elements, at most 32.
__mmask32 first_of(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? __mmask32{0} : (__mmask32{1} << count) - 1;
}

}  // namespace

DP_AVX512 void transpose(const Shapes& s, const Planar& planar, const BFloat16* x, std::int64_t step, BFloat16* to) {
  for (std::int64_t phase = 0; phase < s.stride; ++phase, to += kBlock * planar.plane) {
    const std::int64_t columns = (s.width - phase + s.stride - 1) / s.stride;
    // With stride 1 the rows are contiguous and are transposed as one.
    const bool joined = s.stride == 1;
    const std::int64_t rows = joined ? 1 : s.height, count = joined ? s.height * s.width : columns;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t col = 0; col < count; col += 16) {
        Halves tile[16];
        const BFloat16* from = x + (row * s.width + col * s.stride + phase) * step;
        for (std::int64_t i = 0; i < 16; ++i, from += s.stride * step)
          tile[i] = col + i < count ? *reinterpret_cast<const Halves*>(from) : Halves{};
        swap_halves<8>(tile);
        swap_halves<4>(tile);
        swap_halves<2>(tile);
        swap_halves<1>(tile);
        BFloat16* line = to + row * planar.pitch + col;
        for (int c = 0; c < 16; ++c, line += planar.plane) *reinterpret_cast<Halves*>(line) = tile[c];
      }
  }
}

DP_AVX512 void pack_rows(const Shapes& s, const Planar& planar, const Copy& copy, const BFloat16* planes,
                         BFloat16* to) {
  planes += copy.phase * kBlock * planar.plane + copy.shift;
  for (std::int64_t at = 0; at < s.out_width; at += 32) {
    const __mmask32 wanted = first_of(s.out_width - at),
                    found = wanted & first_of(copy.columns - copy.shift - at) & ~first_of(-copy.shift - at);
    for (std::int64_t c = 0; c < kBlock; ++c) {
      BFloat16* line = to + c * s.line + at;
      for (std::int64_t i = 0; i < s.rows; ++i, line += s.out_width) {
        const std::int64_t in_row = i * s.stride + copy.row;
        const __mmask32 inside = in_row >= 0 && in_row < s.height ? found : 0;
        const BFloat16* from = planes + c * planar.plane + in_row * planar.pitch + at;
        _mm512_mask_storeu_epi16(line, wanted, _mm512_maskz_loadu_epi16(inside, from));
      }
    }
  }
}

DP_AVX512 void pack_permuted(const Shapes& s, const Planar& planar, const Copy& copy, const Permutation& permutation,
                             const BFloat16* planes, BFloat16* to) {
  const __m512i low = _mm512_load_si512(permutation.from), high = _mm512_load_si512(permutation.from + 32);
  const auto found_low = static_cast<__mmask32>(permutation.found),
             found_high = static_cast<__mmask32>(permutation.found >> 32);
  const __mmask32 wanted_low = first_of(s.pixels()), wanted_high = first_of(s.pixels() - 32);
  planes += copy.phase * kBlock * planar.plane;
  for (std::int64_t c = 0; c < kBlock; ++c, planes += planar.plane, to += s.line) {
    const __m512i a = _mm512_loadu_si512(planes), b = _mm512_loadu_si512(planes + 32);
    _mm512_mask_storeu_epi16(to, wanted_low, _mm512_maskz_permutex2var_epi16(found_low, a, low, b));
    if (wanted_high != 0)
      _mm512_mask_storeu_epi16(to + 32, wanted_high, _mm512_maskz_permutex2var_epi16(found_high, a, high, b));
  }
}

DP_AVX512 void pack_pairs(const Shapes& s, std::int64_t pixel, const BFloat16* dy, std::int64_t step, BFloat16* unit) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  std::int64_t i = 0;
  for (; (pixel + i) % 2 != 0 && i < s.pixels(); ++i)  // the second of a pair
    for (std::int64_t c = 0; c < kBlock; ++c) unit[(pixel + i - 1) * kBlock + 2 * c + 1] = dy[i * step + c];
  for (; i + 2 <= s.pixels(); i += 2) {
    const __m512i both = _mm512_or_si512(_mm512_maskz_loadu_epi16(0xffff, dy + i * step),
                                         _mm512_maskz_loadu_epi16(0xffff0000, dy + (i + 1) * step - kBlock));
    _mm512_storeu_si512(unit + (pixel + i) * kBlock, _mm512_permutexvar_epi16(order, both));
  }
  if (i < s.pixels())
    for (std::int64_t c = 0; c < kBlock; ++c) unit[(pixel + i) * kBlock + 2 * c] = dy[i * step + c];
}

}  // namespace dp::kernels::amx

#endif
