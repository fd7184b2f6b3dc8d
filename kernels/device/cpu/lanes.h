// SIMD vectors of fixed width (compiler vector extensions), and Philox random numbers in them.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dp/random.h"
#include "kernels/low_float.h"

namespace dp::kernels {

// Vectors for loops over the channels of a blocked layout.

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

// GCC 12 drops vector attributes that depend on a template parameter, hence each width is spelled out.
template <int L>
struct LaneTypes;
template <>
struct LaneTypes<16> {
  typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::int32_t Ints __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));
  typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
  typedef std::uint8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
};
template <>
struct LaneTypes<8> {
  typedef float Floats __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::int32_t Ints __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::uint32_t Words __attribute__((vector_size(32), aligned(4), may_alias));
  typedef std::uint16_t Halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef std::uint8_t Bytes __attribute__((vector_size(8), aligned(1), may_alias));
};
template <>
struct LaneTypes<4> {
  typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::int32_t Ints __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::uint32_t Words __attribute__((vector_size(16), aligned(4), may_alias));
  typedef std::uint16_t Halves __attribute__((vector_size(8), aligned(2), may_alias));
  typedef std::uint8_t Bytes __attribute__((vector_size(4), aligned(1), may_alias));
};
template <>
struct LaneTypes<1> {
  typedef float Floats __attribute__((vector_size(4), aligned(4), may_alias));
  typedef std::int32_t Ints __attribute__((vector_size(4), aligned(4), may_alias));
  typedef std::uint32_t Words __attribute__((vector_size(4), aligned(4), may_alias));
  typedef std::uint16_t Halves __attribute__((vector_size(2), aligned(2), may_alias));
  typedef std::uint8_t Bytes __attribute__((vector_size(1), aligned(1), may_alias));
};

// Vectors of L elements at any address. A comparison returns Ints with all bits set where it is true.
template <int L>
struct Lanes : LaneTypes<L> {
  static constexpr int count = L;
  using typename LaneTypes<L>::Floats;
  using typename LaneTypes<L>::Ints;
  using typename LaneTypes<L>::Words;
  using typename LaneTypes<L>::Halves;
  using typename LaneTypes<L>::Bytes;

  static Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
  static void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }
  static Floats load(const BFloat16* from) {
    return reinterpret_cast<Floats>(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16);
  }
  // Rounds as from_float<BFloat16>(). The conversion instruction would flush subnormal numbers to zero.
  static void store(BFloat16* to, Floats value) {
    const Words bits = reinterpret_cast<Words>(value);
    const Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    *reinterpret_cast<Halves*>(to) = __builtin_convertvector(value == value ? rounded : nan, Halves);
  }
  static Ints load_bytes(const std::uint8_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Ints);
  }
  static void store_bytes(std::uint8_t* to, Ints value) {
    *reinterpret_cast<Bytes*>(to) = __builtin_convertvector(value, Bytes);
  }
};

// A sum of vectors of any width. Up to 64 of them are added in float.
class LaneSum {
 public:
  template <typename Floats>
  void add(Floats values) {
    Wide wide{};
    std::memcpy(&wide, &values, sizeof(values));
    wide_ += wide;
    if (++pending_ == kChunk) flush();
  }
  double total() {
    flush();
    return total_;
  }

 private:
  using Wide = Lanes<kLanes>::Floats;
  static constexpr int kChunk = 64;

  void flush() {
    for (int k = 0; k < kLanes; ++k) total_ += static_cast<double>(wide_[k]);
    wide_ = Wide{};
    pending_ = 0;
  }

  Wide wide_{};
  double total_ = 0;
  int pending_ = 0;
};

// Calls body(Lanes<L>) with the widest vector that divides a block of channels.
template <typename Body>
void with_lanes(std::int64_t block, const Body& body) {
  if (block % kLanes == 0) return body(Lanes<kLanes>{});
  if (kLanes > 8 && block % 8 == 0) return body(Lanes<8>{});
  body(Lanes<1>{});
}

// Calls body(Lanes, i) for elements i, i + 1, ... of [begin, end), as many as Lanes::count.
template <typename Body>
void for_lanes_of(std::int64_t begin, std::int64_t end, const Body& body) {
  for (; begin + kLanes <= end; begin += kLanes) body(Lanes<kLanes>{}, begin);
  if constexpr (kLanes > 8)  // a block of 8 channels
    if (begin + 8 <= end) body(Lanes<8>{}, begin), begin += 8;
  for (; begin < end; ++begin) body(Lanes<1>{}, begin);
}

// Philox4x32-10 for sixteen counters at once: the same words as dp::philox4x32.

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
