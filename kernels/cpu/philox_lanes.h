// Philox4x32-10 for sixteen counters at once: the same words as dp::philox4x32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "dp/random.h"

namespace dp::kernels {

inline constexpr std::size_t kPhiloxLanes = 16;
using PhiloxLaneWords = std::array<std::array<std::uint32_t, kPhiloxLanes>, 4>;  // [word][lane]

#if defined(__AVX2__)
namespace philox_detail {

using Vector = __m256i;
inline Vector load(const std::uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const Vector*>(from)); }
inline void store(std::uint32_t* to, Vector v) { _mm256_storeu_si256(reinterpret_cast<Vector*>(to), v); }
inline Vector all(std::uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
inline Vector xor3(Vector a, Vector b, Vector c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
inline void multiply(Vector a, Vector b, Vector& high, Vector& low) {
  const Vector even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
inline constexpr std::size_t kWidth = sizeof(Vector) / 4;

}  // namespace philox_detail

// Counters (first[lane], c1, c2, c3).
inline void philox_lanes(const std::uint32_t* first, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                         std::uint32_t key0, std::uint32_t key1, PhiloxLaneWords& words) {
  using namespace philox_detail;
  constexpr std::size_t kParts = kPhiloxLanes / kWidth;
  Vector a[kParts], b[kParts], c[kParts], d[kParts];
  for (std::size_t i = 0; i < kParts; ++i)
    a[i] = load(first + i * kWidth), b[i] = all(c1), c[i] = all(c2), d[i] = all(c3);
  const Vector m0 = all(0xD2511F53u), m1 = all(0xCD9E8D57u);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Vector k0 = all(key0), k1 = all(key1);
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kParts; ++i) {
      Vector high0, low0, high1, low1;
      multiply(a[i], m0, high0, low0);
      multiply(c[i], m1, high1, low1);
      a[i] = xor3(high1, b[i], k0);
      c[i] = xor3(high0, d[i], k1);
      b[i] = low1;
      d[i] = low0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (std::size_t i = 0; i < kParts; ++i) {
    store(words[0].data() + i * kWidth, a[i]);
    store(words[1].data() + i * kWidth, b[i]);
    store(words[2].data() + i * kWidth, c[i]);
    store(words[3].data() + i * kWidth, d[i]);
  }
}
#else
inline void philox_lanes(const std::uint32_t* first, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                         std::uint32_t key0, std::uint32_t key1, PhiloxLaneWords& words) {
  for (std::size_t lane = 0; lane < kPhiloxLanes; ++lane) {
    const PhiloxWords w = philox4x32({first[lane], c1, c2, c3}, key0, key1);
    for (std::size_t i = 0; i < 4; ++i) words[i][lane] = w[i];
  }
}
#endif

}  // namespace dp::kernels
