// What a descriptor must satisfy on a device that computes in float32, before anything is made from it.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace dp::kernels {

// Activations and the weights that layers read, in 16 bits. converted: a Reorder brings float32 to them and back, no other op knows them.
enum class LowPrecision { refused, converted, allowed };

// Error(usage) naming op and shapes when types, shapes or windows do not fit each other.
void check_shapes(const OpDesc& desc, LowPrecision low = LowPrecision::refused);
std::string shapes_of(const OpDesc& desc);  // " x (64, 1, 28, 28) w (32, 1, 3, 3)", for errors

}  // namespace dp::kernels
