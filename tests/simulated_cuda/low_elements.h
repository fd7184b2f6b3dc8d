// Loads and stores of the element types of NVIDIA's libraries, for their simulated counterparts.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/low_float.h"

namespace dp::simt {

enum class ElementType { f32, bf16, f16 };

inline float load(ElementType type, const void* data, std::size_t at) {
  if (type == ElementType::f32) return static_cast<const float*>(data)[at];
  if (type == ElementType::bf16) return kernels::to_float(static_cast<const kernels::BFloat16*>(data)[at]);
  return kernels::to_float(static_cast<const kernels::Float16*>(data)[at]);
}
inline void store(ElementType type, void* data, std::size_t at, float value) {
  if (type == ElementType::f32)
    static_cast<float*>(data)[at] = value;
  else if (type == ElementType::bf16)
    static_cast<kernels::BFloat16*>(data)[at] = kernels::from_float<kernels::BFloat16>(value);
  else
    static_cast<kernels::Float16*>(data)[at] = kernels::from_float<kernels::Float16>(value);
}

// Rounds to the ten mantissa bits that tensor cores read of a float32.
inline float rounded_to_tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & ~0x1fffu);
}

}  // namespace dp::simt
