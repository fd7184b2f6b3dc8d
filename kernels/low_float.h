// The two 16-bit float types of mixed precision, stored as bits. Arithmetic is in float32. All functions are constexpr,
// for host and device code.
#pragma once

#include <bit>
#include <cstdint>

namespace dp::kernels {

struct BFloat16 {  // the upper 16 bits of a float32
  std::uint16_t bits = 0;
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
};
struct Float16 {  // IEEE 754 binary16
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Float16, Float16) = default;
};

constexpr float to_float(float value) { return value; }
constexpr float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }
constexpr float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16, rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  const float tiny = static_cast<float>(rest) * 0x1p-24f;  // subnormal or zero: exact
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(tiny) | sign);
}

// Rounds to nearest, ties to even. Overflow gives infinity; NaN stays NaN.
template <typename To>
constexpr To from_float(float value) = delete;
template <>
constexpr float from_float<float>(float value) {
  return value;
}
template <>
constexpr BFloat16 from_float<BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
template <>
constexpr Float16 from_float<Float16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t rest = bits & 0x7fffffffu;
  const auto with_sign = [&](std::uint32_t magnitude) { return Float16{static_cast<std::uint16_t>(sign | magnitude)}; };
  if (rest > 0x7f800000u) return with_sign(0x7e00u | (rest >> 13 & 0x1ffu));
  if (rest >= 0x477ff000u) return with_sign(0x7c00u);  // 65520, midway between 65504, the largest, and 65536
  if (rest < 0x38800000u) {                            // below 2^-14: rounds to units of 2^-24 by adding kLarge
    constexpr float kLarge = 0x1p-1f;                  // its last mantissa bit is 2^-24
    const float sum = std::bit_cast<float>(rest) + kLarge;
    return with_sign(std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(kLarge));
  }
  return with_sign((rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

}  // namespace dp::kernels
