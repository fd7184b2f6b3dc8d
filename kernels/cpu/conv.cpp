// Convolutions by oneDNN.
#include <memory>

#include "kernels/cpu/conv_thin.h"
#include "kernels/cpu/conv_winograd.h"
#include "kernels/cpu/dnnl_compat.h"
#include "kernels/cpu/dnnl_op.h"

namespace dp::kernels {
namespace {

using dnnl_compat::ConvShape;

ConvShape shape_of(const Window& window, dnnl::algorithm algorithm) {
  return {{window.stride, window.stride}, {window.padding, window.padding}, algorithm};
}
DnnlDesc bias_desc(bool bias, const TensorDesc& w) { return bias ? plain_desc({w.shape[0]}) : DnnlDesc(); }

// oneDNN makes backward primitives after a forward one of the same shapes.
auto forward_hint(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const ConvShape& shape) {
  return dnnl_compat::conv_forward(dnnl_engine(), any_desc(dims_of(x.shape)), any_desc(dims_of(w.shape)), DnnlDesc(),
                                   any_desc(dims_of(y.shape)), shape, op_attributes());
}

// make(shape): by Winograd where that pays and oneDNN has it for this processor and these layouts, else directly.
template <typename Make>
auto with_algorithm(const Window& window, bool winograd, const Make& make) {
  if (winograd) try {
      return make(shape_of(window, dnnl::algorithm::convolution_winograd));
    } catch (const dnnl::error&) {  // the direct one says it better if that cannot be made either
    }
  return make(shape_of(window, dnnl::algorithm::convolution_direct));
}

}  // namespace

std::unique_ptr<HostOp> make(const Conv2dForward& d, const CpuOpOptions& options) {
  dnnl::primitive_attr attr = op_attributes();
  if (d.relu) {
    dnnl::post_ops ops;
    dnnl_compat::append_relu(ops);
    attr.set_post_ops(ops);
  }
  const DnnlDesc bias = bias_desc(d.bias, d.w);
  const bool winograd = winograd_pays(ConvPass::forward, d.w.shape, d.y.shape, d.window);
  const auto pd = with_algorithm(d.window, winograd, [&](const ConvShape& shape) {
    return dnnl_compat::conv_forward(dnnl_engine(), requested(d.x), requested(d.w), bias, requested(d.y), shape, attr);
  });
  auto op = std::make_unique<DnnlOp>(dnnl::convolution_forward(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc()).input(DNNL_ARG_WEIGHTS, pd.weights_desc());
  d.bias ? op->input(DNNL_ARG_BIAS, bias) : op->skip(2);
  op->output(DNNL_ARG_DST, pd.dst_desc())
      .tensors_are({resolved(d.x, pd.src_desc()), resolved(d.w, pd.weights_desc()), resolved(d.y, pd.dst_desc())});
  return op;
}

std::unique_ptr<HostOp> make(const Conv2dBackwardData& d, const CpuOpOptions& options) {
  const bool winograd = winograd_pays(ConvPass::data, d.w.shape, d.dx.shape, d.window);
  const auto pd = with_algorithm(d.window, winograd, [&](const ConvShape& shape) {
    return dnnl_compat::conv_backward_data(dnnl_engine(), requested(d.dx), requested(d.w), requested(d.dy), shape,
                                           forward_hint(d.dx, d.w, d.dy, shape), op_attributes());
  });
  auto op = std::make_unique<DnnlOp>(dnnl::convolution_backward_data(pd), pd, options.threads);
  op->input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .input(DNNL_ARG_WEIGHTS, pd.weights_desc())
      .output(DNNL_ARG_DIFF_SRC, pd.diff_src_desc())
      .tensors_are(
          {resolved(d.dy, pd.diff_dst_desc()), resolved(d.w, pd.weights_desc()), resolved(d.dx, pd.diff_src_desc())});
  return op;
}

std::unique_ptr<HostOp> make(const Conv2dBackwardWeights& d, const CpuOpOptions& options) {
  const DnnlDesc bias = bias_desc(d.bias, d.dw);
  const bool winograd = winograd_pays(ConvPass::weights, d.dw.shape, d.dy.shape, d.window);
  const auto pd = with_algorithm(d.window, winograd, [&](const ConvShape& shape) {
    return dnnl_compat::conv_backward_weights(dnnl_engine(), requested(d.x), requested(d.dw), bias, requested(d.dy),
                                              shape, forward_hint(d.x, d.dw, d.dy, shape), op_attributes());
  });
  // oneDNN has only its naive loops for an image of one channel and AVX2: three hundred times slower than ours.
  if (is_naive(pd))
    if (auto own = make_thin_backward_weights(d, options)) return own;
  auto op = std::make_unique<DnnlOp>(dnnl::convolution_backward_weights(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc())
      .input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .output(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc());
  d.bias ? op->output(DNNL_ARG_DIFF_BIAS, bias) : op->skip(3);
  op->tensors_are(
      {resolved(d.x, pd.src_desc()), resolved(d.dy, pd.diff_dst_desc()), resolved(d.dw, pd.diff_weights_desc())});
  return op;
}

}  // namespace dp::kernels
