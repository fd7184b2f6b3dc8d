// Convolutions: oneDNN's, or our own for Winograd and for few input channels.
#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/conv/cpu_amx.h"
#include "kernels/conv/cpu_own.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/widened_op.h"

namespace dp::kernels {
namespace {

using dnnl_compat::ConvShape;

ConvShape shape_of(const Window& window, dnnl::algorithm algorithm) {
  return {{window.stride.h, window.stride.w},
          {window.padding.h, window.padding.w},
          algorithm,
          {window.dilation.h - 1, window.dilation.w - 1},
          {window.more_behind.h, window.more_behind.w}};
}
DnnlDesc bias_desc(bool bias, const TensorDesc& w) { return bias ? plain_desc({w.shape[0]}) : DnnlDesc(); }

// oneDNN's weights of a convolution in groups have five dimensions: (groups, O / groups, I / groups, kH, kW).
dnnl::memory::dims weight_dims(const TensorDesc& x, const TensorDesc& w) {
  dnnl::memory::dims dims = dims_of(w.shape);
  if (const std::int64_t groups = groups_of(x, w); groups > 1) {
    dims[0] /= groups;
    dims.insert(dims.begin(), groups);
  }
  return dims;
}

// oneDNN requires a forward descriptor of the same shapes to make a backward primitive.
auto forward_hint(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y, const ConvShape& shape) {
  return dnnl_compat::conv_forward(dnnl_engine(), any_desc(dims_of(x.shape), x.type),
                                   any_desc(weight_dims(x, w), x.type), DnnlDesc(), any_desc(dims_of(y.shape), x.type),
                                   shape, op_attributes());
}

bool has_winograd(const TensorDesc& x, const TensorDesc& w, const Window& window, const CpuOpOptions& options) {
  return x.type == DType::f32 && !options.direct_convolutions && is_plain(x, w, window);
}

// Calls make(shape) with the Winograd algorithm if `winograd` and if oneDNN supports it for these layouts (version 2
// with AVX-512), else with the direct algorithm. If Winograd pays and oneDNN lacks it, the makers below use our own.
template <typename Make>
auto with_algorithm(const Window& window, bool winograd, const Make& make) {
  if (winograd) try {
      const auto pd = make(shape_of(window, dnnl::algorithm::convolution_winograd));
      const dnnl::primitive possible(pd.get());  // throws for batches of hundreds of thousands of images
      return pd;
    } catch (const dnnl::error&) {  // if the direct algorithm fails too, its error is more useful
    }
  return make(shape_of(window, dnnl::algorithm::convolution_direct));
}

// Runs a convolution and reorders its result, the third of its tensors. `result`: the result's argument.
class ThenReordered : public HostOp {
 public:
  ThenReordered(std::unique_ptr<HostOp> convolution, std::unique_ptr<HostOp> reorder, Position result)
      : convolution_(std::move(convolution)), reorder_(std::move(reorder)), result_(result) {
    tensors_ = convolution_->tensors();
    bytes_ = (tensors_[2].layout.bytes + 63) / 64 * 64;
    tensors_[2] = reorder_->tensors()[1];
  }
  std::size_t workspace_bytes() const override {
    return bytes_ + std::max(convolution_->workspace_bytes(), reorder_->workspace_bytes());
  }
  std::string implementation() const override {
    return convolution_->implementation() + " + " + reorder_->implementation();
  }
  bool is_fallback() const override { return convolution_->is_fallback(); }
  void execute(std::span<void* const> args, void* workspace) override {
    std::array<void*, kMaxOpArgs> own{};
    std::copy(args.begin(), args.end(), own.begin());
    void* const result = std::exchange(own[static_cast<std::size_t>(result_.index)], workspace);
    void* const rest = static_cast<char*>(workspace) + bytes_;
    convolution_->execute(std::span(own).first(args.size()), rest);
    void* const both[] = {workspace, result};
    reorder_->execute(both, rest);
  }

 private:
  std::unique_ptr<HostOp> convolution_, reorder_;
  Position result_;
  std::size_t bytes_ = 0;
};

// oneDNN's implementations with AMX require nhwc, but it has none for one input channel. Reordering the output costs
// less than running the next layers without AMX.
std::unique_ptr<HostOp> in_nhwc_for_amx(std::unique_ptr<HostOp> op, const Conv2dForward& d,
                                        const CpuOpOptions& options) {
  const TensorDesc y = op->tensors()[2];
  const bool amx = op->implementation().find("amx") != std::string::npos;
  if (!has_amx() || d.x.type != DType::bf16 || amx || !d.y.layout.any()) return op;
  const TensorDesc nhwc =
      resolved(d.y, DnnlDesc(dims_of(d.y.shape), dnnl::memory::data_type::bf16, dnnl::memory::format_tag::nhwc));
  if (y.layout == nhwc.layout) return op;
  return std::make_unique<ThenReordered>(std::move(op), make(Reorder{y, nhwc}, options), positions<Conv2dForward>().y);
}

// Rules for bfloat16 with AMX, measured with oneDNN 2.6 (docs/decisions/0048). oneDNN's weight gradient is faster than
// ours if rows are longer than a tile and do not fill the last one.
bool amx_pays(const Conv2dBackwardWeights& d) {
  constexpr std::int64_t kTile = 16;
  const std::int64_t columns = d.dy.shape[3];
  return is_plain(d.x, d.dw, d.window) && (d.window.kernel == 1 || columns <= kTile || columns % kTile == 0);
}
// With few pixels, flipping the weights takes longer than it saves.
bool flipping_pays(const Conv2dBackwardData& d) { return d.dx.shape[0] * d.dx.shape[2] * d.dx.shape[3] >= 512; }

template <typename PrimitiveDesc>
bool is_winograd(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("wino") != std::string_view::npos;
}

// Whether oneDNN multiplies matrices that it copies from the image: for a depthwise convolution, a matrix a channel.
template <typename PrimitiveDesc>
bool is_gemm(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("gemm") != std::string_view::npos;
}

// For some layouts of dx oneDNN has only reference loops. Tries the layout that oneDNN prefers, then a row-major one,
// and reorders the result to d.dx. Null if these have no faster op either.
std::unique_ptr<HostOp> data_in_other_layouts(const Conv2dBackwardData& d, const CpuOpOptions& options) {
  if (d.dx.layout.any()) return nullptr;
  Conv2dBackwardData free = d, rows = d;
  free.dx.layout = {};
  rows.dx.layout = plain_cpu_layout(d.dx.shape, d.dx.type);
  for (const Conv2dBackwardData& one : {free, rows}) {
    if (one.dx.layout == d.dx.layout) continue;
    auto op = make(one, options);
    if (op->is_fallback()) continue;
    const TensorDesc dx = op->tensors()[2];
    if (dx.layout == d.dx.layout) return op;
    return std::make_unique<ThenReordered>(std::move(op), make(Reorder{dx, d.dx}, options),
                                           positions<Conv2dBackwardData>().dx);
  }
  return nullptr;
}

// If the channels do not fill one block, oneDNN is fast for row-major images only. For small groups it must also choose
// the layout of dy. Returns an op with the layouts that oneDNN prefers; the caller reorders. Null if that op is no
// faster.
template <typename Desc>
std::unique_ptr<HostOp> with_free_images(const Desc& d, const CpuOpOptions& options) {
  if (d.x.layout.any()) return nullptr;
  Desc free = d;
  free.x.layout = {};
  auto op = make(free, options);
  if constexpr (std::is_same_v<Desc, Conv2dBackwardWeights>)
    if (op->is_fallback()) {
      free.dy.layout = {};
      op = make(free, options);
    }
  return op->is_fallback() ? nullptr : std::move(op);
}

using ForwardPrimitive = dnnl::convolution_forward::primitive_desc;

std::unique_ptr<HostOp> dnnl_forward(const Conv2dForward& d, const ForwardPrimitive& pd, const CpuOpOptions& options) {
  auto op = std::make_unique<DnnlOp>(dnnl::convolution_forward(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc()).input(DNNL_ARG_WEIGHTS, pd.weights_desc());
  d.bias ? op->input(DNNL_ARG_BIAS, bias_desc(d.bias, d.w)) : op->skip(positions<Conv2dForward>().b);
  op->output(DNNL_ARG_DST, pd.dst_desc());
  op->tensors_are({resolved(d.x, pd.src_desc()), resolved(d.w, pd.weights_desc()), resolved(d.y, pd.dst_desc())});
  return op;
}

// In an evaluation oneDNN has direct convolutions that are faster than those of training. They read nhwc images and do
// not pay for windows of one pixel, few input channels or small images (docs/decisions/0081). Null where they do not.
std::unique_ptr<HostOp> make_evaluation(const Conv2dForward& d, const CpuOpOptions& options) {
  constexpr std::int64_t kProducts = 64, kWidth = 7;  // products: of one output value
  const std::int64_t products = d.w.shape.numel() / d.w.shape[0];
  if (d.training || d.x.type != DType::f32 || !d.w.layout.any() || groups_of(d.x, d.w) > 1) return nullptr;
  if (products < kProducts || products == d.w.shape[1] || d.y.shape[3] < kWidth) return nullptr;
  ConvShape shape = shape_of(d.window, dnnl::algorithm::convolution_direct);
  shape.forward = dnnl::prop_kind::forward_inference;
  const auto pd = dnnl_compat::conv_forward(dnnl_engine(), any_desc(dims_of(d.x.shape), d.x.type), requested(d.w),
                                            bias_desc(d.bias, d.w), requested(d.y), shape,
                                            relu_attributes(d.relu, /*training=*/false));
  const bool faster = std::string_view(pd.impl_info_str()).starts_with("brgconv");
  return faster ? dnnl_forward(d, pd, options) : nullptr;
}

}  // namespace

std::unique_ptr<HostOp> make(const Conv2dForward& d, const CpuOpOptions& options) {
  if (is_widened(d.x.type, options)) return widened_layer(d, options);
  const dnnl::primitive_attr attr = relu_attributes(d.relu, d.training);
  const DnnlDesc bias = bias_desc(d.bias, d.w);
  const bool winograd = has_winograd(d.x, d.w, d.window, options) && options.fast_convolutions &&
                        winograd_pays(ConvPass::forward, d.w.shape, d.y.shape, d.window, has_amx());
  if (auto op = winograd ? nullptr : make_evaluation(d, options)) return op;
  const auto pd = with_algorithm(d.window, winograd, [&](const ConvShape& shape) {
    return dnnl_compat::conv_forward(dnnl_engine(), requested(d.x), requested(d.w, weight_dims(d.x, d.w)), bias,
                                     requested(d.y), shape, attr);
  });
  if (is_naive(pd)) {
    if (auto op = with_free_images(d, options)) return op;
    if (d.x.type == DType::bf16) return widened_layer(d, options);
  }
  const TensorDesc x = resolved(d.x, pd.src_desc()), w = resolved(d.w, pd.weights_desc()),
                   y = resolved(d.y, pd.dst_desc());
  if (winograd && (!is_winograd(pd) || own_winograd_pays(ConvPass::forward, d.w.shape, has_amx())))
    if (auto own = make_winograd(Conv2dForward{x, w, y, d.window, d.bias, d.relu, d.training}, options)) return own;
  return in_nhwc_for_amx(dnnl_forward(d, pd, options), d, options);
}

std::unique_ptr<HostOp> make(const Conv2dBackwardData& d, const CpuOpOptions& options) {
  if (is_widened(d.dx.type, options)) return widened_layer(d, options);
  if (flipping_pays(d))
    if (auto flipped = make_flipped_backward_data(d, options)) return flipped;
  const bool winograd = has_winograd(d.dx, d.w, d.window, options) && options.fast_convolutions &&
                        winograd_pays(ConvPass::data, d.w.shape, d.dx.shape, d.window, has_amx());
  const auto pd = with_algorithm(d.window, winograd, [&](const ConvShape& shape) {
    return dnnl_compat::conv_backward_data(dnnl_engine(), requested(d.dx), requested(d.w, weight_dims(d.dx, d.w)),
                                           requested(d.dy), shape, forward_hint(d.dx, d.w, d.dy, shape),
                                           op_attributes());
  });
  if (is_naive(pd)) {
    if (auto op = data_in_other_layouts(d, options)) return op;
    if (d.dx.type == DType::bf16) return widened_layer(d, options);
  }
  const TensorDesc dy = resolved(d.dy, pd.diff_dst_desc()), dx = resolved(d.dx, pd.diff_src_desc());
  if (winograd && (!is_winograd(pd) || own_winograd_pays(ConvPass::data, d.w.shape, has_amx()))) {
    // The weight layout of the forward pass, if the layout is any().
    const DnnlDesc w =
        d.w.layout.any()
            ? forward_hint(dx, d.w, dy, shape_of(d.window, dnnl::algorithm::convolution_direct)).weights_desc()
            : requested(d.w);
    if (auto own = make_winograd(Conv2dBackwardData{dy, resolved(d.w, w), dx, d.window}, options)) return own;
  }
  auto op = std::make_unique<DnnlOp>(dnnl::convolution_backward_data(pd), pd, options.threads);
  op->input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .input(DNNL_ARG_WEIGHTS, pd.weights_desc())
      .output(DNNL_ARG_DIFF_SRC, pd.diff_src_desc())
      .tensors_are({dy, resolved(d.w, pd.weights_desc()), dx});
  return op;
}

std::unique_ptr<HostOp> make(const Conv2dBackwardWeights& d, const CpuOpOptions& options) {
  if (is_widened(d.x.type, options)) return widened_layer(d, options);
  const DnnlDesc bias = bias_desc(d.bias, d.dw);
  const bool winograd = has_winograd(d.x, d.dw, d.window, options) &&
                        winograd_pays(ConvPass::weights, d.dw.shape, d.dy.shape, d.window, has_amx());
  const auto pd = with_algorithm(d.window, winograd, [&](const ConvShape& shape) {
    return dnnl_compat::conv_backward_weights(dnnl_engine(), requested(d.x), requested(d.dw, weight_dims(d.x, d.dw)),
                                              bias, requested(d.dy), shape, forward_hint(d.x, d.dw, d.dy, shape),
                                              op_attributes());
  });
  if (is_naive(pd) || is_gemm(pd)) {
    if (auto own = make_depthwise_backward_weights(d, options)) return own;
    // In groups, multiplying matrices in bfloat16 takes longer than converting to float32 and back.
    if (d.x.type == DType::bf16 && groups_of(d.x, d.dw) > 1) return widened_layer(d, options);
  }
  if (is_naive(pd)) {
    // For images of one channel on AVX2 oneDNN has only its reference loops, which are 300 times slower than our kernel
    // (docs/decisions/0009).
    if (d.x.type == DType::f32)
      if (auto own = make_thin_backward_weights(d, options)) return own;
    if (auto op = with_free_images(d, options)) return op;
    if (d.x.type == DType::bf16) return widened_layer(d, options);
  }
  const TensorDesc x = resolved(d.x, pd.src_desc()), dy = resolved(d.dy, pd.diff_dst_desc()),
                   dw = resolved(d.dw, pd.diff_weights_desc());
  if (amx_pays(d))
    if (auto own = make_amx_backward_weights({x, dy, dw, d.window, d.bias}, options)) return own;
  if (winograd && (!is_winograd(pd) || own_winograd_pays(ConvPass::weights, d.dw.shape, has_amx())))
    if (auto own = make_winograd(Conv2dBackwardWeights{x, dy, dw, d.window, d.bias}, options)) return own;
  auto op = std::make_unique<DnnlOp>(dnnl::convolution_backward_weights(pd), pd, options.threads);
  op->input(DNNL_ARG_SRC, pd.src_desc())
      .input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc())
      .output(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc());
  d.bias ? op->output(DNNL_ARG_DIFF_BIAS, bias) : op->skip(positions<Conv2dBackwardWeights>().db);
  op->tensors_are({x, dy, dw});
  return op;
}

}  // namespace dp::kernels
