// Average pooling by oneDNN.
#include <memory>

#include "kernels/cpu/bfloat16/widened_op.h"
#include "kernels/cpu/dnnl_compat.h"
#include "kernels/cpu/dnnl_op.h"

namespace dp::kernels {
namespace {

using dnnl_compat::PoolShape;

PoolShape shape_of(const Window& w, bool global, const Shape& x) {
  if (global) return {{1, 1}, {x[2], x[3]}, {0, 0}};
  return {{w.stride, w.stride}, {w.kernel, w.kernel}, {w.padding, w.padding}};
}

// Whether oneDNN would add the gradients of overlapping windows in bfloat16.
bool in_16_bits(const TensorDesc& large, bool global) { return large.type == DType::bf16 && !global; }

// The pooled side. For images of one cell and whole blocks of channels, blocked and row-major memory are equal. The
// tensor is then declared row-major, which suits a linear layer that reads it, and oneDNN gets it in the blocks of the
// large side.
struct SmallSide {
  TensorDesc tensor;
  DnnlDesc seen;
};
SmallSide small_side(const TensorDesc& large, const TensorDesc& small) {
  TensorDesc any = small;
  any.layout = {};
  const TensorDesc alike = in_layout_of(large, any);
  const bool one_cell = small.shape[2] == 1 && small.shape[3] == 1 && small.shape[1] % view_of(large).block == 0;
  const Layout plain = plain_cpu_layout(small.shape, small.type);
  if (one_cell && (small.layout.any() || small.layout == plain))
    return {{small.shape, small.type, plain}, desc_of(alike.layout)};
  const TensorDesc& tensor = small.layout.any() ? alike : small;
  return {tensor, desc_of(tensor.layout)};
}

}  // namespace

std::unique_ptr<HostOp> make(const AvgPool2dForward& d, const CpuOpOptions& options) {
  constexpr auto p = positions<AvgPool2dForward>();
  if (is_widened(d.x.type, options) || in_16_bits(d.x, d.global))
    return widened(d, options, {{&AvgPool2dForward::x, p.x}, {&AvgPool2dForward::y, p.y, true}});
  const TensorDesc x = resolved_plain(d.x);
  const SmallSide y = small_side(x, d.y);
  const auto pd = dnnl_compat::avg_pool_forward(dnnl_engine(), desc_of(x.layout), y.seen,
                                                shape_of(d.window, d.global, x.shape), op_attributes());
  auto op = std::make_unique<DnnlOp>(dnnl::pooling_forward(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc()).output(DNNL_ARG_DST, pd.dst_desc()).tensors_are({x, y.tensor});
  return op;
}

std::unique_ptr<HostOp> make(const AvgPool2dBackward& d, const CpuOpOptions& options) {
  constexpr auto p = positions<AvgPool2dBackward>();
  if (is_widened(d.dx.type, options) || in_16_bits(d.dx, d.global))
    return widened(d, options, {{&AvgPool2dBackward::dy, p.dy}, {&AvgPool2dBackward::dx, p.dx, true}});
  const TensorDesc dx = d.dx.layout.any() && !d.dy.layout.any() ? in_layout_of(d.dy, d.dx) : resolved_plain(d.dx);
  const SmallSide dy = small_side(dx, d.dy);
  const PoolShape shape = shape_of(d.window, d.global, dx.shape);
  const auto hint = dnnl_compat::avg_pool_forward(dnnl_engine(), desc_of(dx.layout), dy.seen, shape, op_attributes());
  const auto pd =
      dnnl_compat::avg_pool_backward(dnnl_engine(), desc_of(dx.layout), dy.seen, shape, hint, op_attributes());
  auto op = std::make_unique<DnnlOp>(dnnl::pooling_backward(pd), pd, options.threads);
  op->input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .output(DNNL_ARG_DIFF_SRC, pd.diff_src_desc())
      .tensors_are({dy.tensor, dx});
  return op;
}

}  // namespace dp::kernels
