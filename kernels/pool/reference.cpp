// Pooling.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/device/reference/reference_op.h"
#include "kernels/elementwise/reference_dropout.h"
#include "kernels/op_args.h"
#include "kernels/ops.h"
#include "kernels/pool/reference_window.h"

namespace dp::kernels::reference {
namespace {

constexpr std::uint8_t kStopped = 255;  // mask value for no gradient

template <typename Desc>
class PoolOp : public ReferenceOp<Desc> {
 protected:
  PoolOp(const Desc& desc, std::initializer_list<TensorDesc> tensors, std::size_t x, std::size_t y)
      : ReferenceOp<Desc>(desc, tensors) {
    const Shape &xs = this->shape(x), &ys = this->shape(y);
    planes_ = xs[0] * xs[1];
    rows_ = WindowAxis::rows(xs[2], ys[2], desc.window);
    cols_ = WindowAxis::cols(xs[3], ys[3], desc.window);
  }

  std::int64_t planes_;
  WindowAxis rows_, cols_;
};

class MaxPoolForwardOp final : public PoolOp<MaxPool2dForward> {
 public:
  explicit MaxPoolForwardOp(const MaxPool2dForward& desc) : PoolOp(desc, {desc.x, desc.y}, 0, 1) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MaxPool2dForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    auto* mask = desc_.training ? static_cast<std::uint8_t*>(args.mask) : nullptr;
    const auto* samples = static_cast<const std::int64_t*>(args.samples);
    const auto* inputs = static_cast<const StepInputs*>(args.inputs);
    const bool dropout = desc_.training && desc_.dropout;
    const std::int64_t per_sample = tensors_[1].shape.without_first().numel();
    for (std::int64_t plane = 0, at = 0; plane < planes_; ++plane)
      for (std::int64_t i = 0; i < rows_.output; ++i)
        for (std::int64_t j = 0; j < cols_.output; ++j, ++at) {
          auto [value, cell] = first_maximum(x + plane * rows_.input * cols_.input, i, j);
          if (desc_.relu && value <= 0) value = 0, cell = kStopped;
          if (dropout) {
            const bool kept = dropout_keeps(*desc_.dropout, *inputs, samples[at / per_sample], at % per_sample);
            value = kept ? value * dropout_scale(*desc_.dropout) : 0;
            if (!kept) cell = kStopped;
          }
          y[at] = value;
          if (mask) mask[at] = cell;
        }
  }

 private:
  struct Maximum {
    double value;
    std::uint8_t cell;
  };
  // NaN counts as greater than any number, as in PyTorch, so that it propagates.
  Maximum first_maximum(const double* plane, std::int64_t i, std::int64_t j) const {
    Maximum best{0, kStopped};
    for (int row = 0; row < rows_.kernel; ++row)
      for (int col = 0; col < cols_.kernel; ++col) {
        const std::int64_t r = rows_.cell(i, row), c = cols_.cell(j, col);
        if (r < 0 || r >= rows_.input || c < 0 || c >= cols_.input) continue;
        const double value = plane[r * cols_.input + c];
        if (best.cell == kStopped || value > best.value || (std::isnan(value) && !std::isnan(best.value)))
          best = {value, static_cast<std::uint8_t>(row * cols_.kernel + col)};
      }
    return best;
  }
};

class MaxPoolBackwardOp final : public PoolOp<MaxPool2dBackward> {
 public:
  explicit MaxPoolBackwardOp(const MaxPool2dBackward& desc) : PoolOp(desc, {desc.dy, desc.dx}, 1, 0) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MaxPool2dBackward>(pointers);
    const double* dy = f64(args.dy);
    const auto* mask = static_cast<const std::uint8_t*>(args.mask);
    double* dx = f64(args.dx);
    const double scale = desc_.dropout ? dropout_scale(*desc_.dropout) : 1;
    const int kernel = cols_.kernel;
    std::fill_n(dx, planes_ * rows_.input * cols_.input, 0.0);
    for (std::int64_t plane = 0, at = 0; plane < planes_; ++plane)
      for (std::int64_t i = 0; i < rows_.output; ++i)
        for (std::int64_t j = 0; j < cols_.output; ++j, ++at) {
          if (mask[at] == kStopped) continue;
          const std::int64_t r = rows_.cell(i, mask[at] / kernel), c = cols_.cell(j, mask[at] % kernel);
          dx[(plane * rows_.input + r) * cols_.input + c] += dy[at] * scale;
        }
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const MaxPool2dForward& desc) { return std::make_unique<MaxPoolForwardOp>(desc); }
std::unique_ptr<HostOp> make(const MaxPool2dBackward& desc) { return std::make_unique<MaxPoolBackwardOp>(desc); }

namespace {

// The input cells first .. end - 1 of one output cell. Their sum is divided by `count`.
struct Mean {
  std::int64_t first, end, count;
};

Mean mean_of(const WindowAxis& axis, bool adaptive, std::int64_t output) {
  if (!adaptive) {
    const std::int64_t first = axis.cell(output, 0);
    return {std::max<std::int64_t>(first, 0), std::min(first + axis.kernel, axis.input), axis.kernel};
  }
  const auto [first, end] = adaptive_cells(output, axis.input, axis.output);
  return {first, end, end - first};
}

template <typename Desc>
class AvgPoolOp : public ReferenceOp<Desc> {
 protected:
  AvgPoolOp(const Desc& desc, std::initializer_list<TensorDesc> tensors, std::size_t x, std::size_t y)
      : ReferenceOp<Desc>(desc, tensors) {
    const Shape &xs = this->shape(x), &ys = this->shape(y);
    planes_ = xs[0] * xs[1];
    rows_ = WindowAxis::rows(xs[2], ys[2], desc.window);
    cols_ = WindowAxis::cols(xs[3], ys[3], desc.window);
  }

  // Calls visit(input index, output index, number of cells) for each input cell in an output's window.
  template <typename Visit>
  void each_pair(const Visit& visit) const {
    for (std::int64_t plane = 0, y = 0; plane < planes_; ++plane)
      for (std::int64_t i = 0; i < rows_.output; ++i)
        for (std::int64_t j = 0; j < cols_.output; ++j, ++y) {
          const Mean rows = mean_of(rows_, this->desc_.adaptive, i), cols = mean_of(cols_, this->desc_.adaptive, j);
          for (std::int64_t r = rows.first; r < rows.end; ++r)
            for (std::int64_t c = cols.first; c < cols.end; ++c)
              visit((plane * rows_.input + r) * cols_.input + c, y, static_cast<double>(rows.count * cols.count));
        }
  }

  std::int64_t planes_;
  WindowAxis rows_, cols_;
};

class AvgPoolForwardOp final : public AvgPoolOp<AvgPool2dForward> {
 public:
  explicit AvgPoolForwardOp(const AvgPool2dForward& desc) : AvgPoolOp(desc, {desc.x, desc.y}, 0, 1) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AvgPool2dForward>(pointers);
    const double* x = f64(args.x);
    double* y = f64(args.y);
    std::fill_n(y, shape(1).numel(), 0.0);
    each_pair([&](std::int64_t input, std::int64_t output, double cells) { y[output] += x[input] / cells; });
  }
};

class AvgPoolBackwardOp final : public AvgPoolOp<AvgPool2dBackward> {
 public:
  explicit AvgPoolBackwardOp(const AvgPool2dBackward& desc) : AvgPoolOp(desc, {desc.dy, desc.dx}, 1, 0) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<AvgPool2dBackward>(pointers);
    const double* dy = f64(args.dy);
    double* dx = f64(args.dx);
    std::fill_n(dx, shape(1).numel(), 0.0);
    each_pair([&](std::int64_t input, std::int64_t output, double cells) { dx[input] += dy[output] / cells; });
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const AvgPool2dForward& desc) { return std::make_unique<AvgPoolForwardOp>(desc); }
std::unique_ptr<HostOp> make(const AvgPool2dBackward& desc) { return std::make_unique<AvgPoolBackwardOp>(desc); }

}  // namespace dp::kernels::reference
