// Validation of op descriptors for backends that compute in float32.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace dp::kernels {

// The 16-bit types of activations and weights that a device supports. converted: both, but only in Reorder, to and from
// float32. bfloat16: bfloat16 in all ops, float16 only in Reorder.
enum class LowPrecision { refused, converted, bfloat16, allowed };

// Error(usage) with the op and its shapes if types, shapes or windows do not match.
void check_shapes(const OpDesc& desc, LowPrecision low = LowPrecision::refused);
std::string shapes_of(const OpDesc& desc);  // for errors: " x (64, 1, 28, 28) w (32, 1, 3, 3)"

}  // namespace dp::kernels
