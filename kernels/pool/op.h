// Pooling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/op.h"

namespace dp::kernels {

// The rows and columns that the last windows reach beyond the padding. x and y: shapes of one sample (C,H,W).
inline HW more_behind(const Shape& x, const Shape& y, const Window& window) {
  const auto more = [&](int axis, int HW::*side) {
    const std::int64_t last = (y[axis] - 1) * (window.stride.*side) + window.dilation.*side * (window.kernel.*side - 1);
    return static_cast<int>(std::max<std::int64_t>(0, last + 1 - x[axis] - 2 * std::int64_t{window.padding.*side}));
  };
  return {more(1, &HW::h), more(2, &HW::w)};
}

// Whether each window holds at least one cell of x.
inline bool windows_hold_cells(const Shape& x, const Shape& y, const Window& window) {
  const auto hold = [&](int axis, int HW::*side) {
    for (std::int64_t i = 0; i < y[axis]; ++i) {
      const std::int64_t first = i * (window.stride.*side) - window.padding.*side, step = window.dilation.*side;
      const std::int64_t inside = first >= 0 ? first : first + (-first + step - 1) / step * step;
      if (inside >= x[axis] || inside > first + step * (window.kernel.*side - 1)) return false;
    }
    return true;
  };
  return hold(2, &HW::h) && hold(3, &HW::w);
}

// x and y are the input and the output, or their gradients.
inline void check_pool(const OpCheck& op, const TensorDesc& x, const TensorDesc& y, const Window& window) {
  op.rank({&x, &y}, 4);
  op.require(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], "batch and channels of input and output differ");
  op.require(window.kernel.h <= 15 && window.kernel.w <= 15 && 2 * window.padding.h <= window.kernel.h &&
                 2 * window.padding.w <= window.kernel.w,
             "the window must be at most 15, and its padding at most half of it");
  op.window(x.shape, y.shape, window);
  op.require(windows_hold_cells(x.shape, y.shape, window), "a window holds no cell of the image");
}
inline void check_avg_pool(const OpCheck& op, const TensorDesc& x, const TensorDesc& y, const Window& window,
                           bool adaptive) {
  if (!adaptive) {
    op.require(window.dilation == 1 && window.more_behind == 0,
               "the window of a mean has no dilation and no ceil mode");
    return check_pool(op, x, y, window);
  }
  op.rank({&x, &y}, 4);
  op.require(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], "batch and channels of input and output differ");
  op.require(x.shape[2] >= 1 && x.shape[3] >= 1, "the images are empty");
  op.require(y.shape[2] >= 1 && y.shape[3] >= 1, "the output is empty");
}
// The input rows or columns first .. end - 1 of output cell `at` of an adaptive pool.
struct AdaptiveCells {
  std::int64_t first, end;
};
constexpr AdaptiveCells adaptive_cells(std::int64_t at, std::int64_t input, std::int64_t output) {
  return {at * input / output, ((at + 1) * input + output - 1) / output};
}
inline bool is_global(const TensorDesc& pooled) { return pooled.shape[2] == 1 && pooled.shape[3] == 1; }

// y = maxpool(x), then max(0, y) if relu, which equals a ReLU before the pool (docs/decisions/0004), then dropout if it
// is set and training. Padding cells are never the maximum. `mask` holds one byte per element of y for the backward
// pass: the window cell row * kernel.w + col of the first maximum in row-major order (kernel <= 15), or 255 if ReLU or
// dropout blocks the gradient. If training is false, mask is null and dropout is off.
// mask is u8, with y's shape and layout; samples is i64 (N).
struct MaxPool2dForward {
  static constexpr const char* kName = "max_pool2d_forward";
  DP_ARGS(x, y, mask, samples, inputs);  // samples, inputs (StepInputs): null without dropout
  TensorDesc x, y;
  Window window;
  bool relu = false;
  bool training = true;
  std::optional<DropoutSpec> dropout;

  void check(const OpCheck& op) const {
    op.one_type({&x, &y});
    check_pool(op, x, y, window);
    if (dropout) op.dropout(*dropout);
  }
};
DP_ON_EVERY_BACKEND(MaxPool2dForward);

// dx is the gradient of x through the pool and its folded ReLU and dropout. It is zero where no gradient flows.
struct MaxPool2dBackward {
  static constexpr const char* kName = "max_pool2d_backward";
  DP_ARGS(dy, mask, dx);
  TensorDesc dy, dx;
  Window window;
  std::optional<DropoutSpec> dropout;  // for the scale 1/(1-p)

  void check(const OpCheck& op) const {
    op.one_type({&dx, &dy});
    check_pool(op, dx, dy, window);
    if (dropout) op.dropout(*dropout);
  }
};
DP_ON_EVERY_BACKEND(MaxPool2dBackward);

// y = mean over all cells of the window; padding cells count as zero. `adaptive`: `window` is ignored, and output row i
// has the input rows i * H / h, rounded down, to (i + 1) * H / h, rounded up; the columns likewise.
struct AvgPool2dForward {
  static constexpr const char* kName = "avg_pool2d_forward";
  DP_ARGS(x, y);
  TensorDesc x, y;
  Window window;
  bool adaptive = false;

  void check(const OpCheck& op) const {
    op.one_type({&x, &y});
    check_avg_pool(op, x, y, window, adaptive);
  }
};
DP_ON_EVERY_BACKEND(AvgPool2dForward);

struct AvgPool2dBackward {
  static constexpr const char* kName = "avg_pool2d_backward";
  DP_ARGS(dy, dx);
  TensorDesc dy, dx;
  Window window;
  bool adaptive = false;

  void check(const OpCheck& op) const {
    op.one_type({&dx, &dy});
    check_avg_pool(op, dx, dy, window, adaptive);
  }
};
DP_ON_EVERY_BACKEND(AvgPool2dBackward);

}  // namespace dp::kernels
