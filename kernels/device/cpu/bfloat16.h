// bfloat16 on CPUs: processor support and element types of activations.
#pragma once

#include "dp/shape.h"
#include "kernels/low_float.h"

namespace dp::kernels {

// What this processor has for bfloat16.

// True if it has AVX512-BF16 or AMX, and oneDNN may use it (ONEDNN_MAX_CPU_ISA).
bool has_bfloat16();
// True if it has AMX, oneDNN may use it, and the system lets this process use its tiles.
bool has_amx();

// The element types of activations on CPUs.

// Calls body.operator()<T>() with the type of the elements: BFloat16 or float.
template <typename Body>
auto with_element_type(DType type, const Body& body) {
  return type == DType::bf16 ? body.template operator()<BFloat16>() : body.template operator()<float>();
}

}  // namespace dp::kernels
