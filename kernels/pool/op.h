// Pooling.
#pragma once

#include <optional>

#include "kernels/op.h"

namespace dp::kernels {

// x and y are the input and the output, or their gradients.
inline void check_pool(const OpCheck& op, const TensorDesc& x, const TensorDesc& y, const Window& window) {
  op.rank({&x, &y}, 4);
  op.require(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], "batch and channels of input and output differ");
  op.require(window.is_square(), "the window must be square, without dilation");
  op.require(window.kernel.h <= 15 && 2 * window.padding.h <= window.kernel.h,
             "the window must be at most 15, and its padding at most half of it");
  op.window(x.shape, y.shape, window);
}
inline void check_avg_pool(const OpCheck& op, const TensorDesc& x, const TensorDesc& y, const Window& window,
                           bool global) {
  if (!global) return check_pool(op, x, y, window);
  op.rank({&x, &y}, 4);
  op.require(x.shape[2] >= 1 && x.shape[3] >= 1, "the images are empty");
  op.require(y.shape == Shape{x.shape[0], x.shape[1], 1, 1},
             "the output of a global pool must have one cell per sample and channel");
}

// y = maxpool(x), then max(0, y) if relu, which equals a ReLU before the pool (docs/decisions/0004), then dropout if it
// is set and training. Padding cells are never the maximum. `mask` holds one byte per element of y for the backward
// pass: the window cell row*kernel+col of the first maximum in row-major order (kernel <= 15), or 255 if ReLU or
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

// y = mean over all kernel*kernel cells of the window; padding cells count as zero. `global`: the mean is over H and W,
// and `window` is ignored.
struct AvgPool2dForward {
  static constexpr const char* kName = "avg_pool2d_forward";
  DP_ARGS(x, y);
  TensorDesc x, y;
  Window window;
  bool global = false;

  void check(const OpCheck& op) const {
    op.one_type({&x, &y});
    check_avg_pool(op, x, y, window, global);
  }
};
DP_ON_EVERY_BACKEND(AvgPool2dForward);

struct AvgPool2dBackward {
  static constexpr const char* kName = "avg_pool2d_backward";
  DP_ARGS(dy, dx);
  TensorDesc dy, dx;
  Window window;
  bool global = false;

  void check(const OpCheck& op) const {
    op.one_type({&dx, &dy});
    check_avg_pool(op, dx, dy, window, global);
  }
};
DP_ON_EVERY_BACKEND(AvgPool2dBackward);

}  // namespace dp::kernels
