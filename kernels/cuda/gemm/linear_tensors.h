// Memory layouts of a linear layer's tensors.
#pragma once

#include "kernels/layout.h"

namespace dp::kernels::cuda {

struct LinearTensors {
  TensorDesc x, w, y;
};
// Resolves `any` layouts. x becomes channels last, or plain if w has a fixed plain
// layout. w gets the order of x. y becomes plain.
LinearTensors resolved_linear(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y);

}  // namespace dp::kernels::cuda
