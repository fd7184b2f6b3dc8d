// Descriptors of float32 tensors for the tests of convolutions.
#pragma once

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/ops.h"

namespace dp::test {

inline kernels::TensorDesc any_layout(const Shape& shape) {
  kernels::TensorDesc desc;
  desc.shape = shape;
  return desc;
}

inline kernels::TensorDesc with_tag(const Shape& shape, dnnl::memory::format_tag tag) {
  const kernels::DnnlDesc md(kernels::dims_of(shape), dnnl::memory::data_type::f32, tag);
  return {shape, DType::f32, kernels::make_layout(md, DType::f32)};
}

}  // namespace dp::test
