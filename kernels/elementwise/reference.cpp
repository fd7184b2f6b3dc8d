// ReLU, other functions, addition, products, dropout, filling, and copies of channels or to another layout.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dp/random.h"
#include "kernels/device/reference/reference_op.h"
#include "kernels/elementwise/reference_dropout.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"
#include "kernels/step_state.h"

namespace dp::kernels::reference {
namespace {

class ReluForwardOp final : public ReferenceOp<ReluForward> {
 public:
  explicit ReluForwardOp(const ReluForward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ReluForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) y[i] = x[i] < 0 ? 0 : x[i];  // NaN stays NaN
  }
};

class ReluBackwardOp final : public ReferenceOp<ReluBackward> {
 public:
  explicit ReluBackwardOp(const ReluBackward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ReluBackward>(pointers);
    const double *dy = f64(args.dy), *y = f64(args.y);
    double* dx = f64(args.dx);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) dx[i] = y[i] > 0 ? dy[i] * static_cast<double>(desc_.scale) : 0;
  }
};

class FunctionForwardOp final : public ReferenceOp<FunctionForward> {
 public:
  explicit FunctionForwardOp(const FunctionForward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<FunctionForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    std::visit(
        [&](const auto& function) {
          for (std::int64_t i = 0; i < shape(0).numel(); ++i) y[i] = function.value(x[i]);
        },
        desc_.function);
  }
};

class FunctionBackwardOp final : public ReferenceOp<FunctionBackward> {
 public:
  explicit FunctionBackwardOp(const FunctionBackward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<FunctionBackward>(pointers);
    const double *dy = f64(args.dy), *x = f64(args.x);
    double* dx = f64(args.dx);
    std::visit(
        [&](const auto& function) {
          for (std::int64_t i = 0; i < shape(0).numel(); ++i) dx[i] = dy[i] * function.derivative(x[i]);
        },
        desc_.function);
  }
};

class AddOp final : public ReferenceOp<AddForward> {
 public:
  explicit AddOp(const AddForward& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AddForward>(pointers);
    const double *a = f64(args.a), *b = f64(args.b);
    double* y = f64(args.y);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) {
      const double sum = a[i] + b[i];
      y[i] = desc_.relu && sum < 0 ? 0 : sum;
    }
  }
};

// The index of the factor of each element of x, by Broadcast.
template <typename Visit>
void each_factor(const Shape& x, const Shape& s, const Visit& visit) {
  const Broadcast broadcast = broadcast_of(x, s);
  if (broadcast == Broadcast::none) {
    for (std::int64_t i = 0; i < x.numel(); ++i) visit(i, i);
    return;
  }
  const std::int64_t channels = x[1], pixels = x[2] * x[3];
  for (std::int64_t n = 0, at = 0; n < x[0]; ++n)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p, ++at)
        visit(at, broadcast == Broadcast::pixels ? n * channels + c : n * pixels + p);
}

class MultiplyForwardOp final : public ReferenceOp<MultiplyForward> {
 public:
  explicit MultiplyForwardOp(const MultiplyForward& desc) : ReferenceOp(desc, {desc.x, desc.s, desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MultiplyForward>(pointers);
    const double *x = f64(args.x), *s = f64(args.s);
    double* y = f64(args.y);
    each_factor(shape(0), shape(1), [&](std::int64_t i, std::int64_t factor) { y[i] = x[i] * s[factor]; });
  }
};

class MultiplyBackwardOp final : public ReferenceOp<MultiplyBackward> {
 public:
  explicit MultiplyBackwardOp(const MultiplyBackward& desc)
      : ReferenceOp(desc, {desc.x, desc.x, desc.s, desc.x, desc.s}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MultiplyBackward>(pointers);
    const double *dy = f64(args.dy), *x = f64(args.x), *s = f64(args.s);
    double *dx = f64(args.dx), *ds = f64(args.ds);
    if (ds) {
      std::fill_n(ds, shape(2).numel(), 0.0);
      each_factor(shape(1), shape(2), [&](std::int64_t i, std::int64_t factor) { ds[factor] += dy[i] * x[i]; });
      for (std::int64_t i = 0; i < shape(2).numel(); ++i) ds[i] = rounded(ds[i], desc_.s.type);
    }
    if (dx) each_factor(shape(1), shape(2), [&](std::int64_t i, std::int64_t factor) { dx[i] = dy[i] * s[factor]; });
  }
};

class CopyChannelsOp final : public ReferenceOp<CopyChannels> {
 public:
  explicit CopyChannelsOp(const CopyChannels& desc) : ReferenceOp(desc, {desc.x, desc.y}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<CopyChannels>(pointers);
    const std::int64_t from = shape(0)[1], to = shape(1)[1],
                       pixels = shape(0).rank() == 4 ? shape(0)[2] * shape(0)[3] : 1;
    for (std::int64_t n = 0; n < shape(0)[0]; ++n)
      for (std::int64_t i = 0; i < desc_.count; ++i)
        std::copy_n(f64(args.x) + (n * from + desc_.from + i * desc_.from_step) * pixels, pixels,
                    f64(args.y) + (n * to + desc_.to + i * desc_.to_step) * pixels);
  }
};

class DropoutOp final : public ReferenceOp<DropoutApply> {
 public:
  explicit DropoutOp(const DropoutApply& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropoutApply>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    const auto* samples = static_cast<const std::int64_t*>(args.samples);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    const std::int64_t per_sample = shape(0).without_first().numel();
    for (std::int64_t n = 0, at = 0; n < shape(0)[0]; ++n)
      for (std::int64_t element = 0; element < per_sample; ++element, ++at)
        y[at] = dropout_keeps(desc_.dropout, inputs, samples[n], element) ? x[at] * dropout_scale(desc_.dropout) : 0;
  }
};

class DropFactorsOp final : public ReferenceOp<DropFactors> {
 public:
  explicit DropFactorsOp(const DropFactors& desc) : ReferenceOp(desc, {desc.y}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropFactors>(pointers);
    const auto* samples = static_cast<const std::int64_t*>(args.samples);
    const auto& inputs = *static_cast<const StepInputs*>(args.inputs);
    const std::int64_t channels = shape(0)[1];
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) {
      const std::int64_t element = desc_.whole_samples ? 0 : i % channels;
      const bool kept = dropout_keeps(desc_.dropout, inputs, samples[i / channels], element);
      f64(args.y)[i] = kept ? dropout_scale(desc_.dropout) : 0;
    }
  }
};

class FillOp final : public ReferenceOp<Fill> {
 public:
  explicit FillOp(const Fill& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Fill>(pointers);
    if (desc_.bytes) std::memset(args.dst, 0, desc_.bytes);
  }
};

class AccumulateOp final : public ReferenceOp<Accumulate> {
 public:
  explicit AccumulateOp(const Accumulate& desc) : ReferenceOp(desc, {}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Accumulate>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    for (std::int64_t i = 0; i < desc_.count; ++i) y[i] += x[i];
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const ReluForward& desc) { return std::make_unique<ReluForwardOp>(desc); }
std::unique_ptr<HostOp> make(const ReluBackward& desc) { return std::make_unique<ReluBackwardOp>(desc); }
std::unique_ptr<HostOp> make(const FunctionForward& desc) { return std::make_unique<FunctionForwardOp>(desc); }
std::unique_ptr<HostOp> make(const FunctionBackward& desc) { return std::make_unique<FunctionBackwardOp>(desc); }
std::unique_ptr<HostOp> make(const AddForward& desc) { return std::make_unique<AddOp>(desc); }
std::unique_ptr<HostOp> make(const MultiplyForward& desc) { return std::make_unique<MultiplyForwardOp>(desc); }
std::unique_ptr<HostOp> make(const MultiplyBackward& desc) { return std::make_unique<MultiplyBackwardOp>(desc); }
std::unique_ptr<HostOp> make(const CopyChannels& desc) { return std::make_unique<CopyChannelsOp>(desc); }
std::unique_ptr<HostOp> make(const DropoutApply& desc) { return std::make_unique<DropoutOp>(desc); }
std::unique_ptr<HostOp> make(const DropFactors& desc) { return std::make_unique<DropFactorsOp>(desc); }
std::unique_ptr<HostOp> make(const Fill& desc) { return std::make_unique<FillOp>(desc); }
std::unique_ptr<HostOp> make(const Accumulate& desc) { return std::make_unique<AccumulateOp>(desc); }

namespace {

class ReorderOp final : public ReferenceOp<Reorder> {
 public:
  explicit ReorderOp(const Reorder& desc) : ReferenceOp(desc, {}) { tensors_ = {resolve(desc.src), resolve(desc.dst)}; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Reorder>(pointers);
    if (desc_.src.type == DType::f32)
      copy_to(static_cast<const float*>(args.src), args.dst);
    else
      copy_to(static_cast<const double*>(args.src), args.dst);
  }

 private:
  template <typename From>
  void copy_to(const From* src, void* dst) const {
    if (desc_.dst.type == DType::f32)
      copy(src, static_cast<float*>(dst));
    else
      copy(src, static_cast<double*>(dst));
  }
  template <typename From, typename To>
  void copy(const From* src, To* dst) const {
    for (std::int64_t i = 0; i < desc_.src.shape.numel(); ++i) dst[i] = static_cast<To>(src[i]);
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const Reorder& desc) { return std::make_unique<ReorderOp>(desc); }

}  // namespace dp::kernels::reference
