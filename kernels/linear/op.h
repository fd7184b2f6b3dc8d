// Linear layers.
#pragma once

#include "kernels/op.h"

namespace dp::kernels {

// x and y are the input and the output, or their gradients.
inline void check_linear(const OpCheck& op, const TensorDesc& x, const TensorDesc& w, const TensorDesc& y) {
  const Shape &xs = x.shape, &ws = w.shape, &ys = y.shape;
  op.require((xs.rank() == 2 || xs.rank() == 4) && ws.rank() == 2 && ys.rank() == 2,
             "the input must have two or four dimensions, weights and output two");
  op.require(xs[0] == ys[0], "input and output have different batches");
  op.require(ws[0] == ys[1] && ws[1] == xs.without_first().numel(),
             "the features of the weights differ from those of input and output");
}

// y = x w^T + b, then max(0, y) if relu. x may be (N,C,H,W): it is flattened in C,H,W order, and w is (O, C*H*W).
struct LinearForward {
  static constexpr const char* kName = "linear_forward";
  DP_ARGS(x, w, b, y);  // b: may be null
  TensorDesc x, w, y;
  bool bias = true;
  bool relu = false;
  bool training = true;  // false: no gradient follows, so the ReLU may leave 1e-18 of a negative value (kReluSlope)

  void check(const OpCheck& op) const {
    op.one_type({&x, &w, &y});
    check_linear(op, x, w, y);
  }
  Product product() const { return {kName, x.shape, w.shape, y.shape}; }
};
DP_ON_EVERY_BACKEND(LinearForward);

struct LinearBackwardData {
  static constexpr const char* kName = "linear_backward_data";
  DP_ARGS(dy, w, dx);
  TensorDesc dy, w, dx;

  void check(const OpCheck& op) const {
    op.one_type({&dx, &w, &dy});
    check_linear(op, dx, w, dy);
  }
  Product product() const { return {kName, dx.shape, w.shape, dy.shape}; }
};
DP_ON_EVERY_BACKEND(LinearBackwardData);

struct LinearBackwardWeights {
  static constexpr const char* kName = "linear_backward_weights";
  DP_ARGS(x, dy, dw, db);  // db: may be null
  TensorDesc x, dy, dw;
  bool bias = true;

  void check(const OpCheck& op) const {
    op.one_type({&x, &dy});
    op.compute_type({&dw});
    check_linear(op, x, dw, dy);
  }
  Product product() const { return {kName, x.shape, dw.shape, dy.shape}; }
};
DP_ON_EVERY_BACKEND(LinearBackwardWeights);

}  // namespace dp::kernels
