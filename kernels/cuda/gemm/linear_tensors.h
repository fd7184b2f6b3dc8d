// How the tensors of a linear layer lie.
#pragma once

#include "kernels/layout.h"

namespace dp::kernels::cuda {

struct LinearTensors {
  TensorDesc x, w, y;
};
// What `any` becomes: x as it is, or channels last; the weights in the order of x.
LinearTensors resolved_linear(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y);

}  // namespace dp::kernels::cuda
