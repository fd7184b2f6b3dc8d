// Validation of op descriptors for backends that compute in float32.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace dp::kernels {

// Support for 16-bit activations and weights. converted: only Reorder accepts them, to and from float32.
enum class LowPrecision { refused, converted, allowed };

// Error(usage) with the op and its shapes if types, shapes or windows do not match.
void check_shapes(const OpDesc& desc, LowPrecision low = LowPrecision::refused);
std::string shapes_of(const OpDesc& desc);  // for errors: " x (64, 1, 28, 28) w (32, 1, 3, 3)"

}  // namespace dp::kernels
