// Mixed precision of the reference: tensors of 16-bit types are float64 in memory, of which each has a value of that type.
#pragma once

#include "dp/shape.h"
#include "kernels/low_float.h"

namespace dp::kernels::reference {

inline bool is_low(DType type) { return type == DType::bf16 || type == DType::f16; }

// By way of float32, as a device that computes in it.
inline double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return to_float(from_float<BFloat16>(single));
  if (type == DType::f16) return to_float(from_float<Float16>(single));
  return value;
}

}  // namespace dp::kernels::reference
