// Layouts of the CPU backend: Layout::native holds a dnnl::memory::desc, of bfloat16 or of float32.
#pragma once

#include <cstdint>
#include <dnnl.hpp>
#include <vector>

#include "kernels/layout.h"

namespace dp::kernels {

using DnnlDesc = dnnl::memory::desc;

// The name lists the axes, outermost first, blocked axes in upper case; then the inner blocks, type and shape:
// "aBcd8b:f32(64, 32, 26, 26)". Descriptors with the same name have the same memory order. Layouts of all other types
// hold the float32 descriptor of the same order.
Layout make_layout(const DnnlDesc& md, DType type);
Layout plain_cpu_layout(const Shape& shape, DType type);

dnnl::memory::data_type dnnl_type(DType type);  // bf16 or f32
const DnnlDesc& desc_of(const Layout& layout);  // the layout must not be any()
DnnlDesc plain_desc(const dnnl::memory::dims& dims, DType type = DType::f32);
DnnlDesc any_desc(const dnnl::memory::dims& dims, DType type);
// Returns a descriptor for elements of `type`, bf16 or f32, with the same memory order. If bfloat16 weights interleave
// pairs of channels, the result has no pairs. If `type` has no such order, the result is row-major.
DnnlDesc with_type(const DnnlDesc& md, DType type);
dnnl::memory::dims dims_of(const Shape& shape);
// The offset of each element in memory, in elements; the elements are in row-major order of their indices.
std::vector<std::int64_t> places_of(const DnnlDesc& md);

// The requested descriptor: format_tag::any, or the given layout reshaped to `dims` (the weights of a linear layer may
// be flat or not).
DnnlDesc requested(const TensorDesc& tensor, const dnnl::memory::dims& dims);
inline DnnlDesc requested(const TensorDesc& tensor) { return requested(tensor, dims_of(tensor.shape)); }
TensorDesc resolved(const TensorDesc& tensor, const DnnlDesc& md);
// The tensor; its layout is row-major if it was any().
TensorDesc resolved_plain(const TensorDesc& tensor);

// An activation as N x blocks x H x W x block, with `block` contiguous channels. nchw has block 1; nhwc has one block
// of C. A plane (one sample, one block) is contiguous. Channels of the last block beyond c are padding and zero.
// (N,features) is one channel of one row.
struct ActivationView {
  std::int64_t n = 0, c = 0, h = 1, w = 1;
  std::int64_t blocks = 0, block = 1;
  std::int64_t stride_n = 0, stride_block = 0, stride_h = 0, stride_w = 0;  // elements

  std::int64_t at(std::int64_t in, std::int64_t ib) const { return in * stride_n + ib * stride_block; }
};
// Error(usage) for any other layout.
ActivationView view_of(const TensorDesc& tensor);
// The same for an op that reads one of two images and writes the other. An image of 1x1 has the same memory in nchw and
// nhwc; it gets the view that fits the other image.
ActivationView view_beside(const TensorDesc& tensor, const TensorDesc& other);
// The same, but the features of (N,features) are its channels, with one pixel each.
ActivationView channels_view_of(const TensorDesc& tensor);

// The activation `tensor`. If its layout was any(), it gets the layout of `like`, which may have another image size:
// the same order of axes and the same blocks.
TensorDesc in_layout_of(const TensorDesc& like, const TensorDesc& tensor);

}  // namespace dp::kernels
