// Convolutions.
#pragma once

#include "kernels/op.h"

namespace dp::kernels {

// Weights are (O, I / groups, kH, kW), as PyTorch's.
inline std::int64_t groups_of(const TensorDesc& x, const TensorDesc& w) { return x.shape[1] / w.shape[1]; }

// Whether the convolution is of the kind that most kernels are written for: one group, a square window, no dilation.
inline bool is_plain(const TensorDesc& x, const TensorDesc& w, const Window& window) {
  return w.shape[1] == x.shape[1] && window.is_square();
}

// x and y are the input and the output, or their gradients.
inline void check_conv(const OpCheck& op, const TensorDesc& x, const TensorDesc& w, const TensorDesc& y,
                       const Window& window) {
  op.rank({&x, &w, &y}, 4);
  const Shape& ws = w.shape;
  op.require(ws[0] == y.shape[1], "the weights' first dimension differs from the output's channels");
  op.require(ws[1] >= 1 && x.shape[1] % ws[1] == 0 && ws[0] % (x.shape[1] / ws[1]) == 0,
             "the channels of the weights do not divide those of input and output into groups");
  op.require(ws[2] == window.kernel.h && ws[3] == window.kernel.w,
             "the size of the weights differs from that of the window");
  op.require(x.shape[0] == y.shape[0], "input and output have different batches");
  op.window(x.shape, y.shape, window);
}

// y = conv(x, w) + b, then max(0, y) if relu.
struct Conv2dForward {
  static constexpr const char* kName = "conv2d_forward";
  DP_ARGS(x, w, b, y);  // b: may be null
  TensorDesc x, w, y;
  Window window;
  bool bias = true;
  bool relu = false;
  bool training = true;  // false: no gradient follows, so the ReLU may leave 1e-18 of a negative value (kReluSlope)

  void check(const OpCheck& op) const {
    op.one_type({&x, &w, &y});
    check_conv(op, x, w, y, window);
  }
  Product product() const { return {kName, x.shape, w.shape, y.shape, window}; }
};
DP_ON_EVERY_BACKEND(Conv2dForward);

// dx = d(loss)/dx. dy is the gradient of y before any ReLU.
struct Conv2dBackwardData {
  static constexpr const char* kName = "conv2d_backward_data";
  DP_ARGS(dy, w, dx);
  TensorDesc dy, w, dx;
  Window window;

  void check(const OpCheck& op) const {
    op.one_type({&dx, &w, &dy});
    check_conv(op, dx, w, dy, window);
  }
  Product product() const { return {kName, dx.shape, w.shape, dy.shape, window}; }
};
DP_ON_EVERY_BACKEND(Conv2dBackwardData);

// dw = d(loss)/dw, db = sum of dy over N,H,W.
struct Conv2dBackwardWeights {
  static constexpr const char* kName = "conv2d_backward_weights";
  DP_ARGS(x, dy, dw, db);  // db: may be null
  TensorDesc x, dy, dw;
  Window window;
  bool bias = true;

  void check(const OpCheck& op) const {
    op.one_type({&x, &dy});
    op.compute_type({&dw});
    check_conv(op, x, dw, dy, window);
  }
  Product product() const { return {kName, x.shape, dw.shape, dy.shape, window}; }
};
DP_ON_EVERY_BACKEND(Conv2dBackwardWeights);

}  // namespace dp::kernels
