#include "kernels/check_shapes.h"

#include "dp/error.h"

namespace dp::kernels {
namespace {

[[noreturn]] void refuse(const OpDesc& desc, const std::string& why) {
  throw Error(ErrorCode::usage, std::string(name_of(desc)) + " of" + shapes_of(desc) + ": " + why);
}

bool is_low(DType type) { return type == DType::bf16 || type == DType::f16; }

void check_types(const OpDesc& desc, std::initializer_list<const TensorDesc*> tensors) {
  for (const TensorDesc* tensor : tensors)
    if (tensor->type != DType::f32)
      refuse(desc, std::string("this device computes in float32, not ") + to_string(tensor->type));
}

bool supports(LowPrecision low, DType type) {
  return is_low(type) && (low == LowPrecision::allowed || (low == LowPrecision::bfloat16 && type == DType::bf16));
}

// Activations and the weights that layers read: all float32, or all of one 16-bit type if `low` allows it.
void check_activations(const OpDesc& desc, LowPrecision low, std::initializer_list<const TensorDesc*> tensors) {
  const DType type = (*tensors.begin())->type;
  if (!supports(low, type)) return check_types(desc, tensors);
  for (const TensorDesc* tensor : tensors)
    if (tensor->type != type)
      refuse(desc, std::string("activations and weights must have one type, not ") + to_string(type) + " and " +
                       to_string(tensor->type));
}

void check_scaling(const OpDesc& desc, LowPrecision low, bool asked) {
  if (asked && low != LowPrecision::allowed) refuse(desc, "this device does not scale losses");
}

std::int64_t window_output(std::int64_t in, const Window& w) { return (in + 2 * w.padding - w.kernel) / w.stride + 1; }

bool window_fits(const Shape& in, const Shape& out, const Window& w) {
  if (w.kernel < 1 || w.stride < 1 || w.padding < 0) return false;
  for (const int axis : {2, 3})
    if (in[axis] + 2 * w.padding < w.kernel || out[axis] != window_output(in[axis], w)) return false;
  return true;
}

void check_conv(const OpDesc& desc, const TensorDesc& x, const TensorDesc& w, const TensorDesc& y,
                const Window& window) {
  const Shape &xs = x.shape, &ws = w.shape, &ys = y.shape;
  if (xs.rank() != 4 || ws.rank() != 4 || ys.rank() != 4) refuse(desc, "every tensor must have four dimensions");
  if (ws[1] != xs[1] || ws[0] != ys[1])
    refuse(desc, "the channels of the weights differ from those of input and output");
  if (ws[2] != window.kernel || ws[3] != window.kernel)
    refuse(desc, "the size of the weights differs from that of the window");
  if (xs[0] != ys[0]) refuse(desc, "input and output have different batches");
  if (!window_fits(xs, ys, window)) refuse(desc, "the output does not fit the input and the window");
}

void check_linear(const OpDesc& desc, const TensorDesc& x, const TensorDesc& w, const TensorDesc& y) {
  const Shape &xs = x.shape, &ws = w.shape, &ys = y.shape;
  if ((xs.rank() != 2 && xs.rank() != 4) || ws.rank() != 2 || ys.rank() != 2)
    refuse(desc, "the input must have two or four dimensions, weights and output two");
  if (xs[0] != ys[0]) refuse(desc, "input and output have different batches");
  if (ws[0] != ys[1] || ws[1] != xs.without_first().numel())
    refuse(desc, "the features of the weights differ from those of input and output");
}

void check_dropout(const OpDesc& desc, const DropoutSpec& dropout) {
  if (!(dropout.p >= 0 && dropout.p < 1))
    refuse(desc, "dropout's p must be in [0, 1), not " + std::to_string(dropout.p));
}

void check_pool(const OpDesc& desc, const TensorDesc& x, const TensorDesc& y, const Window& w,
                const std::optional<DropoutSpec>& dropout) {
  const Shape &xs = x.shape, &ys = y.shape;
  if (xs.rank() != 4 || ys.rank() != 4) refuse(desc, "every tensor must have four dimensions");
  if (xs[0] != ys[0] || xs[1] != ys[1]) refuse(desc, "batch and channels of input and output differ");
  if (w.kernel > 15 || 2 * w.padding > w.kernel)
    refuse(desc, "the window must be at most 15, and its padding at most half of it");
  if (!window_fits(xs, ys, w)) refuse(desc, "the output does not fit the input and the window");
  if (dropout) check_dropout(desc, *dropout);
}

void check_avg_pool(const OpDesc& desc, const TensorDesc& x, const TensorDesc& y, const Window& w, bool global) {
  if (!global) return check_pool(desc, x, y, w, std::nullopt);
  if (x.shape.rank() != 4 || y.shape.rank() != 4) refuse(desc, "every tensor must have four dimensions");
  if (x.shape[2] < 1 || x.shape[3] < 1) refuse(desc, "the images are empty");
  if (y.shape != Shape{x.shape[0], x.shape[1], 1, 1})
    refuse(desc, "the output of a global pool must have one cell per sample and channel");
}

void check_norm(const OpDesc& desc, const TensorDesc& x) {
  if (x.shape.rank() != 4) refuse(desc, "the tensor must have four dimensions");
  if (x.shape[1] < 1) refuse(desc, "there must be at least one channel");
}

void check_channels(const OpDesc& desc, std::int64_t channels, int parts, double eps) {
  if (channels < 1) refuse(desc, "there must be at least one channel, not " + std::to_string(channels));
  if (parts < 1) refuse(desc, "there must be at least one part, not " + std::to_string(parts));
  if (!(eps >= 0)) refuse(desc, "eps must not be negative, but is " + std::to_string(eps));
}

void check_count(const OpDesc& desc, std::int64_t count) {
  if (count < 0) refuse(desc, "the count " + std::to_string(count) + " is negative");
}

struct Check {
  const OpDesc& desc;
  const LowPrecision low;

  void of_one_type(std::initializer_list<const TensorDesc*> tensors) const { check_activations(desc, low, tensors); }

  void operator()(const Conv2dForward& d) const {
    of_one_type({&d.x, &d.w, &d.y});
    check_conv(desc, d.x, d.w, d.y, d.window);
  }
  void operator()(const Conv2dBackwardData& d) const {
    of_one_type({&d.dx, &d.w, &d.dy});
    check_conv(desc, d.dx, d.w, d.dy, d.window);
  }
  void operator()(const Conv2dBackwardWeights& d) const {
    of_one_type({&d.x, &d.dy});
    check_types(desc, {&d.dw});
    check_conv(desc, d.x, d.dw, d.dy, d.window);
  }
  void operator()(const LinearForward& d) const {
    of_one_type({&d.x, &d.w, &d.y});
    check_linear(desc, d.x, d.w, d.y);
  }
  void operator()(const LinearBackwardData& d) const {
    of_one_type({&d.dx, &d.w, &d.dy});
    check_linear(desc, d.dx, d.w, d.dy);
  }
  void operator()(const LinearBackwardWeights& d) const {
    of_one_type({&d.x, &d.dy});
    check_types(desc, {&d.dw});
    check_linear(desc, d.x, d.dw, d.dy);
  }
  void operator()(const ReluForward& d) const { of_one_type({&d.x}); }
  void operator()(const ReluBackward& d) const { of_one_type({&d.x}); }
  void operator()(const MaxPool2dForward& d) const {
    of_one_type({&d.x, &d.y});
    check_pool(desc, d.x, d.y, d.window, d.dropout);
  }
  void operator()(const MaxPool2dBackward& d) const {
    of_one_type({&d.dx, &d.dy});
    check_pool(desc, d.dx, d.dy, d.window, d.dropout);
  }
  void operator()(const AvgPool2dForward& d) const {
    of_one_type({&d.x, &d.y});
    check_avg_pool(desc, d.x, d.y, d.window, d.global);
  }
  void operator()(const AvgPool2dBackward& d) const {
    of_one_type({&d.dx, &d.dy});
    check_avg_pool(desc, d.dx, d.dy, d.window, d.global);
  }
  void operator()(const AddForward& d) const { of_one_type({&d.x}); }
  void operator()(const BatchNormMoments& d) const {
    norm(d.x);
    check_channels(desc, d.x.shape[1], 1, d.eps.value_or(0));
  }
  void operator()(const BatchNormMerge& d) const { check_channels(desc, d.channels, d.parts, d.eps); }
  void operator()(const BatchNormTrack& d) const {
    for (const BatchNormTrack::Norm& one : d.norms) {
      check_channels(desc, one.channels, d.parts, 0);
      if (!(one.momentum >= 0 && one.momentum <= 1))
        refuse(desc, "the momentum must be in [0, 1], not " + std::to_string(one.momentum));
    }
  }
  void operator()(const BatchNormRunning& d) const { check_channels(desc, d.channels, 1, d.eps); }
  void operator()(const BatchNormFold& d) const {
    of_one_type({&d.w});
    if (d.w.shape.rank() != 4) refuse(desc, "the weights must have four dimensions");
    check_channels(desc, d.w.shape[0], 1, d.eps);
  }
  void operator()(const BatchNormForward& d) const { norm(d.x); }
  void operator()(const BatchNormBackwardSums& d) const { norm(d.x); }
  void operator()(const BatchNormBackward& d) const {
    norm(d.x);
    check_channels(desc, d.x.shape[1], d.parts, 0);
  }
  void operator()(const NormConv2dForward& d) const {
    of_one_type({&d.x, &d.w, &d.y});
    check_conv(desc, d.x, d.w, d.y, d.window);
    if (d.eps && !d.moments) refuse(desc, "stats require moments");
    check_channels(desc, d.y.shape[1], 1, d.eps.value_or(0));
  }
  void operator()(const NormConv2dBackwardData& d) const {
    of_one_type({&d.dx, &d.w, &d.dy});
    check_conv(desc, d.dx, d.w, d.dy, d.window);
    if (d.renormalize && !d.relu) refuse(desc, "renormalisation requires a ReLU");
  }
  void operator()(const NormConv2dBackwardWeights& d) const {
    of_one_type({&d.x, &d.dy});
    check_types(desc, {&d.dw});
    check_conv(desc, d.x, d.dw, d.dy, d.window);
  }
  void operator()(const LinearDropoutForward& d) const {
    (*this)(d.linear);
    check_dropout(desc, d.dropout);
  }
  void operator()(const Conv2dPoolForward& d) const {
    (*this)(d.conv);
    (*this)(d.pool);
    if (d.conv.y.shape != d.pool.x.shape)
      refuse(desc, "the pool's input shape differs from the convolution's output shape");
  }
  void operator()(const Conv2dReluBackwardData& d) const { (*this)(d.data); }
  void operator()(const LinearPoolBackwardData& d) const {
    (*this)(d.data);
    (*this)(d.pool);
    if (d.data.dx.shape != d.pool.dy.shape)
      refuse(desc, "the layer's input shape differs from the pool's output shape");
  }
  void operator()(const LinearReluBackward& d) const {
    (*this)(d.weights);
    (*this)(d.data);
    if (d.weights.x.shape != d.data.dx.shape || d.weights.dw.shape != d.data.w.shape)
      refuse(desc, "the two gradients belong to different layers");
  }
  void operator()(const LinearLoss& d) const {
    (*this)(d.linear);
    (*this)(d.loss);
    if (d.linear.y.shape != Shape{d.loss.batch, d.loss.classes})
      refuse(desc, "the loss's logits differ from the layer's output");
  }
  void operator()(const DropoutApply& d) const {
    of_one_type({&d.x});
    if (d.x.shape.rank() != 2 && d.x.shape.rank() != 4) refuse(desc, "the tensor must have two or four dimensions");
    check_dropout(desc, d.dropout);
  }
  void operator()(const SoftmaxCrossEntropy& d) const {
    check_count(desc, d.batch);
    if (d.classes < 1) refuse(desc, "there must be at least one class, not " + std::to_string(d.classes));
    check_scaling(desc, low, d.scaled);
  }
  bool reads_low(DType other, DType type) const {
    return low != LowPrecision::refused && (other == DType::f32 || (supports(low, type) && other == type));
  }
  void operator()(const Reorder& d) const {
    if (d.src.shape != d.dst.shape) refuse(desc, "the shapes differ");
    for (const TensorDesc* t : {&d.src, &d.dst}) {
      const bool converts = t->type == DType::f32 || t->type == DType::f64;
      const DType other = (t == &d.src ? d.dst : d.src).type;
      if (converts || (is_low(t->type) && reads_low(other, t->type))) continue;
      refuse(desc, std::string("cannot convert ") + to_string(d.src.type) + " to " + to_string(d.dst.type) +
                       " on this device; convert to float32 first");
    }
  }
  void operator()(const Fill&) const {}
  void operator()(const Accumulate& d) const { check_count(desc, d.count); }
  void operator()(const MovingAverage& d) const { check_count(desc, d.count); }
  void operator()(const OptimizerUpdate& d) const {
    check_count(desc, d.count);
    if (d.copy && !is_low(*d.copy))
      refuse(desc, std::string("the copy of the weights must be bfloat16 or float16, not ") + to_string(*d.copy));
    if (d.copy && !supports(low, *d.copy))
      refuse(desc, std::string("this device does not support mixed precision in ") + to_string(*d.copy));
  }
  void operator()(const GradNormPartials& d) const { check_count(desc, d.count); }
  void operator()(const GradNormFinish& d) const {
    check_count(desc, d.blocks);
    check_scaling(desc, low, d.scaling.has_value());
  }
  void operator()(const GatherImages& d) const {
    check_types(desc, {&d.x});
    if (d.x.shape.rank() != 4) refuse(desc, "the tensor must have four dimensions");
  }

 private:
  void norm(const TensorDesc& x) const {
    of_one_type({&x});
    check_norm(desc, x);
  }
};

}  // namespace

void check_shapes(const OpDesc& desc, LowPrecision low) { std::visit(Check{desc, low}, desc); }

namespace {

template <typename Desc>
void add_shapes(std::string& text, const Desc& d) {
  const auto add = [&](const char* name, const TensorDesc& t) {
    text += std::string(" ") + name + " " + to_string(t.shape);
  };
  if constexpr (requires { d.linear; }) add_shapes(text, d.linear);
  if constexpr (requires { d.conv; }) add_shapes(text, d.conv);
  if constexpr (requires { d.weights; }) add_shapes(text, d.weights);
  if constexpr (requires { d.data; }) add_shapes(text, d.data);
  if constexpr (requires { d.pool; }) add_shapes(text, d.pool);
  if constexpr (requires { d.x; }) add("x", d.x);
  if constexpr (requires { d.dy; }) add("dy", d.dy);
  if constexpr (requires { d.w; }) add("w", d.w);
  if constexpr (requires { d.y; }) add("y", d.y);
  if constexpr (requires { d.dx; }) add("dx", d.dx);
  if constexpr (requires { d.dw; }) add("dw", d.dw);
  if constexpr (requires { d.src; }) add("src", d.src), add("dst", d.dst);
  if constexpr (requires { d.channels; }) text += " " + std::to_string(d.channels) + " channels";
  if constexpr (requires { d.window; })
    text += " window " + std::to_string(d.window.kernel) + " stride " + std::to_string(d.window.stride) + " padding " +
            std::to_string(d.window.padding);
}

}  // namespace

std::string shapes_of(const OpDesc& desc) {
  std::string text;
  std::visit([&](const auto& d) { add_shapes(text, d); }, desc);
  return text;
}

}  // namespace dp::kernels
