// Descriptors of tensors in any layout and in those of oneDNN.
#pragma once

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/ops.h"

namespace dp::test {

inline kernels::TensorDesc any_layout(const Shape& shape) {
  kernels::TensorDesc desc;
  desc.shape = shape;
  return desc;
}

using Tag = dnnl::memory::format_tag;

// `type`: float32 or bfloat16.
inline kernels::TensorDesc with_tag(const Shape& shape, DType type, Tag tag) {
  const auto element = type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  return {shape, type, kernels::make_layout(kernels::DnnlDesc(kernels::dims_of(shape), element, tag), type)};
}

inline kernels::TensorDesc with_tag(const Shape& shape, Tag tag) { return with_tag(shape, DType::f32, tag); }

}  // namespace dp::test
