// Ops along the channels.
#include <algorithm>
#include <cmath>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"

namespace dp::kernels::reference {
namespace {

template <typename Desc>
class ChannelsOp : public ReferenceOp<Desc> {
 public:
  explicit ChannelsOp(const Desc& desc)
      : ReferenceOp<Desc>(desc, {desc.x}),
        channels_(desc.x.shape[1]),
        pixels_(desc.x.shape.rank() == 4 ? desc.x.shape[2] * desc.x.shape[3] : 1) {}

 protected:
  // The index of an element's number.
  std::int64_t number_of(std::int64_t i) const { return this->desc_.numbers == 1 ? 0 : i / pixels_ % channels_; }

  // Calls visit(index of channel 0) for each pixel. Its channels are `pixels_` apart.
  template <typename Visit>
  void each_pixel(const Visit& visit) const {
    for (std::int64_t n = 0; n < this->shape(0)[0]; ++n)
      for (std::int64_t p = 0; p < pixels_; ++p) visit(n * channels_ * pixels_ + p);
  }

  std::int64_t channels_, pixels_;
};

class ChannelwiseForwardOp final : public ChannelsOp<ChannelwiseForward> {
 public:
  using ChannelsOp::ChannelsOp;

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ChannelwiseForward>(pointers);
    const double *x = f64(args.x), *w = f64(args.w);
    double* y = f64(args.y);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) {
      const double number = w[number_of(i)];
      y[i] = desc_.function == Channelwise::add ? x[i] + number : x[i] > 0 ? x[i] : number * x[i];
    }
  }
};

class ChannelwiseBackwardOp final : public ChannelsOp<ChannelwiseBackward> {
 public:
  using ChannelsOp::ChannelsOp;

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ChannelwiseBackward>(pointers);
    const double *dy = f64(args.dy), *x = f64(args.x), *w = f64(args.w);
    double *dx = f64(args.dx), *dw = f64(args.dw);
    std::fill_n(dw, desc_.numbers, 0.0);
    for (std::int64_t i = 0; i < shape(0).numel(); ++i) {
      const std::int64_t number = number_of(i);
      const double gradient = dy[i];
      if (desc_.function == Channelwise::add) {
        dw[number] += gradient;
        continue;
      }
      const bool positive = x[i] > 0;
      if (!positive) dw[number] += gradient * x[i];
      dx[i] = positive ? gradient : gradient * w[number];
    }
  }
};

class SoftmaxForwardOp final : public ChannelsOp<SoftmaxForward> {
 public:
  using ChannelsOp::ChannelsOp;

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    each_pixel([&](std::int64_t first) {
      const auto at = [&](std::int64_t c) { return first + c * pixels_; };
      double largest = x[first], sum = 0;
      for (std::int64_t c = 1; c < channels_; ++c) largest = std::max(largest, x[at(c)]);
      for (std::int64_t c = 0; c < channels_; ++c) sum += y[at(c)] = std::exp(x[at(c)] - largest);
      for (std::int64_t c = 0; c < channels_; ++c) y[at(c)] /= sum;
    });
  }
};

class SoftmaxBackwardOp final : public ChannelsOp<SoftmaxBackward> {
 public:
  using ChannelsOp::ChannelsOp;

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<SoftmaxBackward>(pointers);
    const double *dy = f64(args.dy), *y = f64(args.y);
    double* dx = f64(args.dx);
    each_pixel([&](std::int64_t first) {
      const auto at = [&](std::int64_t c) { return first + c * pixels_; };
      double sum = 0;
      for (std::int64_t c = 0; c < channels_; ++c) sum += dy[at(c)] * y[at(c)];
      for (std::int64_t c = 0; c < channels_; ++c) dx[at(c)] = y[at(c)] * (dy[at(c)] - sum);
    });
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const ChannelwiseForward& desc) { return std::make_unique<ChannelwiseForwardOp>(desc); }
std::unique_ptr<HostOp> make(const ChannelwiseBackward& desc) { return std::make_unique<ChannelwiseBackwardOp>(desc); }
std::unique_ptr<HostOp> make(const SoftmaxForward& desc) { return std::make_unique<SoftmaxForwardOp>(desc); }
std::unique_ptr<HostOp> make(const SoftmaxBackward& desc) { return std::make_unique<SoftmaxBackwardOp>(desc); }

}  // namespace dp::kernels::reference
