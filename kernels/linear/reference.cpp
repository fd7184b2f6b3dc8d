#include <algorithm>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::reference {
namespace {

template <typename Desc>
class LinearOp : public ReferenceOp<Desc> {
 protected:
  LinearOp(const Desc& desc, std::initializer_list<TensorDesc> tensors, std::size_t w, std::size_t y)
      : ReferenceOp<Desc>(desc, tensors) {
    const Shape& ws = this->shape(w);
    batch_ = this->shape(y)[0], in_ = ws[1], out_ = ws[0];
  }

  std::int64_t batch_, in_, out_;
};

class LinearForwardOp final : public LinearOp<LinearForward> {
 public:
  explicit LinearForwardOp(const LinearForward& desc) : LinearOp(desc, {desc.x, desc.w, desc.y}, 1, 2) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<LinearForward>(pointers);
    const double *x = f64(args.x), *w = f64(args.w), *b = f64(args.b);
    double* y = f64(args.y);
    for (std::int64_t n = 0; n < batch_; ++n)
      for (std::int64_t o = 0; o < out_; ++o) {
        double sum = desc_.bias ? b[o] : 0;
        for (std::int64_t i = 0; i < in_; ++i) sum += x[n * in_ + i] * w[o * in_ + i];
        y[n * out_ + o] = desc_.relu && sum < 0 ? 0 : sum;
      }
  }
};

class LinearBackwardDataOp final : public LinearOp<LinearBackwardData> {
 public:
  explicit LinearBackwardDataOp(const LinearBackwardData& desc) : LinearOp(desc, {desc.dy, desc.w, desc.dx}, 1, 0) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<LinearBackwardData>(pointers);
    const double *dy = f64(args.dy), *w = f64(args.w);
    double* dx = f64(args.dx);
    std::fill_n(dx, batch_ * in_, 0.0);
    for (std::int64_t n = 0; n < batch_; ++n)
      for (std::int64_t o = 0; o < out_; ++o)
        for (std::int64_t i = 0; i < in_; ++i) dx[n * in_ + i] += dy[n * out_ + o] * w[o * in_ + i];
  }
};

class LinearBackwardWeightsOp final : public LinearOp<LinearBackwardWeights> {
 public:
  explicit LinearBackwardWeightsOp(const LinearBackwardWeights& desc)
      : LinearOp(desc, {desc.x, desc.dy, desc.dw}, 2, 1) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<LinearBackwardWeights>(pointers);
    const double *x = f64(args.x), *dy = f64(args.dy);
    double *dw = f64(args.dw), *db = f64(args.db);
    std::fill_n(dw, out_ * in_, 0.0);
    if (desc_.bias) std::fill_n(db, out_, 0.0);
    for (std::int64_t n = 0; n < batch_; ++n)
      for (std::int64_t o = 0; o < out_; ++o) {
        const double grad = dy[n * out_ + o];
        for (std::int64_t i = 0; i < in_; ++i) dw[o * in_ + i] += grad * x[n * in_ + i];
        if (desc_.bias) db[o] += grad;
      }
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const LinearForward& desc) { return std::make_unique<LinearForwardOp>(desc); }
std::unique_ptr<HostOp> make(const LinearBackwardData& desc) { return std::make_unique<LinearBackwardDataOp>(desc); }
std::unique_ptr<HostOp> make(const LinearBackwardWeights& desc) {
  return std::make_unique<LinearBackwardWeightsOp>(desc);
}

}  // namespace dp::kernels::reference
