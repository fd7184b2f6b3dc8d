#include <algorithm>

#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"
#include "kernels/pool/reference_window.h"

namespace dp::kernels::reference {
namespace {

// The two innermost loops of the convolutions: over the cells of one row, with a step.

void add_scaled(double* to, std::int64_t to_step, const double* from, std::int64_t from_step, double factor,
                std::int64_t count) {
  if (to_step == 1 && from_step == 1)
    for (std::int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
  else
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] += factor * from[i * from_step];
}

double dot(const double* a, const double* b, std::int64_t b_step, std::int64_t count) {
  double sum = 0;
  if (b_step == 1) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i * b_step];
  }
  return sum;
}

template <typename Desc>
class ConvOp : public ReferenceOp<Desc> {
 protected:
  using ReferenceOp<Desc>::desc_;

  // `x`, `w` and `y` are indices into `tensors`, of x, w and y or of their gradients.
  ConvOp(const Desc& desc, std::initializer_list<TensorDesc> tensors, std::size_t x, std::size_t w, std::size_t y)
      : ReferenceOp<Desc>(desc, tensors) {
    const Shape &xs = this->shape(x), &ys = this->shape(y);
    batch_ = xs[0], in_ = xs[1], out_ = ys[1];
    groups_ = xs[1] / this->shape(w)[1];
    rows_ = WindowAxis::rows(xs[2], ys[2], desc.window);
    cols_ = WindowAxis::cols(xs[3], ys[3], desc.window);
  }

  // Calls visit(weight index, first x, first y, count) for every weight and every output row that uses it: `count`
  // cells, contiguous in y and `stride` apart in x.
  template <typename Visit>
  void for_each_row(Visit visit) const {
    const std::int64_t inputs = in_ / groups_, outputs = out_ / groups_;  // of a group
    for (std::int64_t n = 0; n < batch_; ++n)
      for (std::int64_t o = 0; o < out_; ++o)
        for (std::int64_t c = 0; c < inputs; ++c)
          for (int row = 0; row < rows_.kernel; ++row)
            for (int col = 0; col < cols_.kernel; ++col)
              for (std::int64_t i = rows_.first(row); i < rows_.last(row); ++i) {
                const std::int64_t j = cols_.first(col);
                if (j >= cols_.last(col)) break;
                const std::int64_t channel = o / outputs * inputs + c;
                const std::int64_t x =
                    ((n * in_ + channel) * rows_.input + rows_.cell(i, row)) * cols_.input + cols_.cell(j, col);
                const std::int64_t y = ((n * out_ + o) * rows_.output + i) * cols_.output + j;
                visit(((o * inputs + c) * rows_.kernel + row) * cols_.kernel + col, x, y, cols_.last(col) - j);
              }
  }
  std::int64_t stride() const { return cols_.stride; }
  std::int64_t plane() const { return rows_.output * cols_.output; }

  std::int64_t batch_, in_, out_, groups_;
  WindowAxis rows_, cols_;
};

class ConvForwardOp final : public ConvOp<Conv2dForward> {
 public:
  explicit ConvForwardOp(const Conv2dForward& desc) : ConvOp(desc, {desc.x, desc.w, desc.y}, 0, 1, 2) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dForward>(pointers);
    const double *x = f64(args.x), *w = f64(args.w), *b = f64(args.b);
    double* y = f64(args.y);
    const std::int64_t count = batch_ * out_ * plane();
    for (std::int64_t i = 0; i < count; ++i) y[i] = desc_.bias ? b[i / plane() % out_] : 0;
    for_each_row([&](std::int64_t weight, std::int64_t from, std::int64_t to, std::int64_t cells) {
      add_scaled(y + to, 1, x + from, stride(), w[weight], cells);
    });
    if (desc_.relu)
      for (std::int64_t i = 0; i < count; ++i) y[i] = y[i] < 0 ? 0 : y[i];
  }
};

class ConvBackwardDataOp final : public ConvOp<Conv2dBackwardData> {
 public:
  explicit ConvBackwardDataOp(const Conv2dBackwardData& desc) : ConvOp(desc, {desc.dy, desc.w, desc.dx}, 2, 1, 0) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dBackwardData>(pointers);
    const double *dy = f64(args.dy), *w = f64(args.w);
    double* dx = f64(args.dx);
    std::fill_n(dx, batch_ * in_ * rows_.input * cols_.input, 0.0);
    for_each_row([&](std::int64_t weight, std::int64_t to, std::int64_t from, std::int64_t cells) {
      add_scaled(dx + to, stride(), dy + from, 1, w[weight], cells);
    });
  }
};

class ConvBackwardWeightsOp final : public ConvOp<Conv2dBackwardWeights> {
 public:
  explicit ConvBackwardWeightsOp(const Conv2dBackwardWeights& desc)
      : ConvOp(desc, {desc.x, desc.dy, desc.dw}, 0, 2, 1) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    const double *x = f64(args.x), *dy = f64(args.dy);
    double *dw = f64(args.dw), *db = f64(args.db);
    std::fill_n(dw, tensors_[2].shape.numel(), 0.0);
    for_each_row([&](std::int64_t weight, std::int64_t from, std::int64_t grad, std::int64_t cells) {
      dw[weight] += dot(dy + grad, x + from, stride(), cells);
    });
    if (!desc_.bias) return;
    std::fill_n(db, out_, 0.0);
    for (std::int64_t i = 0; i < batch_ * out_ * plane(); ++i) db[i / plane() % out_] += dy[i];
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const Conv2dForward& desc) { return std::make_unique<ConvForwardOp>(desc); }
std::unique_ptr<HostOp> make(const Conv2dBackwardData& desc) { return std::make_unique<ConvBackwardDataOp>(desc); }
std::unique_ptr<HostOp> make(const Conv2dBackwardWeights& desc) {
  return std::make_unique<ConvBackwardWeightsOp>(desc);
}

}  // namespace dp::kernels::reference
