// Linear layers by oneDNN's inner product, which takes (N,C,H,W) in any layout without flattening it.
#include <memory>

#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/widened_op.h"
#include "kernels/linear/cpu_chunks.h"

namespace dp::kernels {
namespace {

// The weights (O, C*H*W) in the shape that oneDNN requires for this x: (O, C, H, W).
dnnl::memory::dims weight_dims(const TensorDesc& x, const TensorDesc& w) {
  dnnl::memory::dims dims = dims_of(x.shape);
  dims[0] = w.shape[0];
  return dims;
}
DnnlDesc bias_desc(bool bias, const TensorDesc& w) { return bias ? plain_desc({w.shape[0]}) : DnnlDesc(); }

auto forward_hint(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y) {
  return dnnl_compat::linear_forward(dnnl_engine(), any_desc(dims_of(x.shape), x.type),
                                     any_desc(weight_dims(x, w), x.type), DnnlDesc(),
                                     any_desc(dims_of(y.shape), x.type), op_attributes());
}

// The weights in the layout of the forward product of this x. oneDNN prefers another layout here, but reordering the
// weights in each step costs more than it gains.
DnnlDesc weights_as_forward(const LinearBackwardData& d) {
  const auto dims = weight_dims(d.dx, d.w);
  if (!d.w.layout.any() || d.dx.layout.any()) return requested(d.w, dims);
  return dnnl_compat::linear_forward(dnnl_engine(), requested(d.dx), any_desc(dims, d.w.type), DnnlDesc(),
                                     requested(d.dy), op_attributes())
      .weights_desc();
}

}  // namespace

std::unique_ptr<HostOp> make(const LinearForward& d, const CpuOpOptions& options) {
  if (is_widened(d.x.type, options)) return widened_layer(d, options);
  const dnnl::primitive_attr attr = relu_attributes(d.relu, d.training);
  const DnnlDesc bias = bias_desc(d.bias, d.w);
  const auto pd = dnnl_compat::linear_forward(dnnl_engine(), requested(d.x), requested(d.w, weight_dims(d.x, d.w)),
                                              bias, requested(d.y), attr);
  if (is_naive(pd) && d.x.type == DType::bf16) return widened_layer(d, options);
  auto op = std::make_unique<DnnlOp>(dnnl::inner_product_forward(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc()).input(DNNL_ARG_WEIGHTS, pd.weights_desc());
  d.bias ? op->input(DNNL_ARG_BIAS, bias) : op->skip(positions<LinearForward>().b);
  op->output(DNNL_ARG_DST, pd.dst_desc())
      .tensors_are({resolved(d.x, pd.src_desc()), resolved(d.w, pd.weights_desc()), resolved(d.y, pd.dst_desc())});
  return op;
}

std::unique_ptr<HostOp> make(const LinearBackwardData& d, const CpuOpOptions& options) {
  if (is_widened(d.dx.type, options)) return widened_layer(d, options);
  const auto hint = forward_hint(d.dx, d.w, d.dy);
  auto pd = dnnl_compat::linear_backward_data(dnnl_engine(), requested(d.dx), weights_as_forward(d), requested(d.dy),
                                              hint, op_attributes());
  if (is_naive(pd))
    pd = dnnl_compat::linear_backward_data(dnnl_engine(), requested(d.dx), requested(d.w, weight_dims(d.dx, d.w)),
                                           requested(d.dy), hint, op_attributes());
  if (is_naive(pd) && d.dx.type == DType::bf16) return widened_layer(d, options);
  if (d.dx.type == DType::f32 && std::string_view(pd.impl_info_str()).find("gemm:jit") != std::string_view::npos) {
    const LinearBackwardData found{resolved(d.dy, pd.diff_dst_desc()), resolved(d.w, pd.weights_desc()),
                                   resolved(d.dx, pd.diff_src_desc())};
    if (auto chunks = make_chunked_backward_data(found, options)) return chunks;
  }
  auto op = std::make_unique<DnnlOp>(dnnl::inner_product_backward_data(pd), pd, options.threads);
  op->input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .input(DNNL_ARG_WEIGHTS, pd.weights_desc())
      .output(DNNL_ARG_DIFF_SRC, pd.diff_src_desc())
      .tensors_are(
          {resolved(d.dy, pd.diff_dst_desc()), resolved(d.w, pd.weights_desc()), resolved(d.dx, pd.diff_src_desc())});
  return op;
}

std::unique_ptr<HostOp> make(const LinearBackwardWeights& d, const CpuOpOptions& options) {
  if (is_widened(d.x.type, options)) return widened_layer(d, options);
  const DnnlDesc bias = bias_desc(d.bias, d.dw);
  const auto pd =
      dnnl_compat::linear_backward_weights(dnnl_engine(), requested(d.x), requested(d.dw, weight_dims(d.x, d.dw)), bias,
                                           requested(d.dy), forward_hint(d.x, d.dw, d.dy), op_attributes());
  if (is_naive(pd) && d.x.type == DType::bf16) return widened_layer(d, options);
  auto op = std::make_unique<DnnlOp>(dnnl::inner_product_backward_weights(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc())
      .input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .output(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc());
  d.bias ? op->output(DNNL_ARG_DIFF_BIAS, bias) : op->skip(positions<LinearBackwardWeights>().db);
  op->tensors_are(
      {resolved(d.x, pd.src_desc()), resolved(d.dy, pd.diff_dst_desc()), resolved(d.dw, pd.diff_weights_desc())});
  return op;
}

}  // namespace dp::kernels
