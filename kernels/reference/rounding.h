// Mixed precision in the reference backend: a tensor of a 16-bit type is stored as float64, with values rounded to that
// type.
#pragma once

#include "dp/shape.h"
#include "kernels/low_float.h"

namespace dp::kernels::reference {

inline bool is_low(DType type) { return type == DType::bf16 || type == DType::f16; }

// Rounds through float32, like a device that computes in float32.
inline double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return to_float(from_float<BFloat16>(single));
  if (type == DType::f16) return to_float(from_float<Float16>(single));
  return value;
}

}  // namespace dp::kernels::reference
