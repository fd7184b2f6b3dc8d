// The element types of activations on CPUs.
#pragma once

#include "dp/shape.h"
#include "kernels/low_float.h"

namespace dp::kernels {

// Calls body.operator()<T>() with the type of the elements: BFloat16 or float.
template <typename Body>
auto with_element_type(DType type, const Body& body) {
  return type == DType::bf16 ? body.template operator()<BFloat16>() : body.template operator()<float>();
}

}  // namespace dp::kernels
