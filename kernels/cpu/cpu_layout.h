// Layouts of the CPU backend: Layout::native holds a dnnl::memory::desc.
#pragma once

#include <dnnl.hpp>

#include "kernels/layout.h"

namespace dp::kernels {

using DnnlDesc = dnnl::memory::desc;

// The name tells the order of axes, outermost first, a blocked axis in upper case, then the inner blocks, type and shape:
// "aBcd8b:f32(64, 32, 26, 26)". Descriptors of one name put every element in the same place.
// oneDNN has no float64 or int64 here; such a layout holds the float32 descriptor of the same order.
Layout make_layout(const DnnlDesc& md, DType type);
Layout plain_cpu_layout(const Shape& shape, DType type);

const DnnlDesc& desc_of(const Layout& layout);  // the layout must not be any()
DnnlDesc plain_desc(const dnnl::memory::dims& dims);
DnnlDesc any_desc(const dnnl::memory::dims& dims);
dnnl::memory::dims dims_of(const Shape& shape);

// What a request asks for: format_tag::any, or the layout given, seen with `dims` (a Linear's weights may be flat or not).
DnnlDesc requested(const TensorDesc& tensor, const dnnl::memory::dims& dims);
inline DnnlDesc requested(const TensorDesc& tensor) { return requested(tensor, dims_of(tensor.shape)); }
TensorDesc resolved(const TensorDesc& tensor, const DnnlDesc& md);
// The tensor with its layout, row-major if it was any().
TensorDesc resolved_plain(const TensorDesc& tensor);

// An activation as N x blocks x H x W x block: `block` channels side by side. nchw is block 1, nhwc one block of C.
// A plane (one sample, one block) lies in one piece.
// Channels of a last block beyond c are padding and zero. (N,features) is one channel of one row.
struct ActivationView {
  std::int64_t n = 0, c = 0, h = 1, w = 1;
  std::int64_t blocks = 0, block = 1;
  std::int64_t stride_n = 0, stride_block = 0, stride_h = 0, stride_w = 0;  // elements

  std::int64_t at(std::int64_t in, std::int64_t ib) const { return in * stride_n + ib * stride_block; }
};
// Error(usage) when the layout is none of those.
ActivationView view_of(const TensorDesc& tensor);

// An activation with its layout; if it was any(), that of `like`, of another size of image: same order of axes, same blocks.
TensorDesc in_layout_of(const TensorDesc& like, const TensorDesc& tensor);

}  // namespace dp::kernels
