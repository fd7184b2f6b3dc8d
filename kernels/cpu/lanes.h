// Fixed-width SIMD vectors (compiler vector extensions), for loops over the channels of a blocked layout.
#pragma once

#include <cstdint>

#include "kernels/low_float.h"

namespace dp::kernels {

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
  for (; begin < end; ++begin) body(Lanes<1>{}, begin);
}

}  // namespace dp::kernels
