// Ops that compute several others at once. kernels/fused/fused_steps.h and fused_layers.h define their results.
#pragma once

#include <optional>

#include "kernels/conv/op.h"
#include "kernels/linear/op.h"
#include "kernels/loss/op.h"
#include "kernels/norm/op.h"
#include "kernels/op.h"
#include "kernels/pool/op.h"

namespace dp::kernels {

inline Product without_intermediate(Product product) {
  product.pooled = true;
  return product;
}

// Batch normalisation fused with adjacent convolutions. Each op gives the result of the ops it names, run in sequence,
// with the same rounding to the activation type. Intermediate tensors need not be written to memory.
// engine/layers/nodes.h describes where plans may use them (docs/decisions/0025).

// Conv2dForward of z, without bias and ReLU. If `moments`, then BatchNormMoments of y with `eps`. z is x or, if `norm`,
// the result of BatchNormForward with relu on x. stats, weight and bias are null without norm, moments without
// `moments`, y_stats without eps.
struct NormConv2dForward {
  static constexpr const char* kName = "norm_conv2d_forward";
  DP_ARGS(x, stats, weight, bias, w, y, moments, y_stats);
  TensorDesc x, w, y;
  Window window;
  bool norm = false;
  bool moments = false;
  std::optional<double> eps{};

  void check(const OpCheck& op) const {
    op.one_type({&x, &w, &y});
    check_conv(op, x, w, y, window);
    op.require(moments || !eps, "stats require moments");
    check_channels(op, y.shape[1], 1, eps.value_or(0));
  }
  Product product() const {
    return {.kind = kName, .x = x.shape, .w = w.shape, .y = y.shape, .window = window, .normalises = true};
  }
};
DP_ON_EVERY_BACKEND(NormConv2dForward);

// Conv2dBackwardData into dx, the gradient of a batch normalisation's result y, then BatchNormBackwardSums of that
// normalisation. `add`: of dx + dy2. `relu`: the gradient passes only where y > 0. `renormalize`: y is null and is
// recomputed from x, as NormConv2dForward computes z. All tensors but dy and w have dx's layout. dz must not alias
// another argument. dy2 is null without add, y without relu and with renormalize, weight and bias without renormalize.
struct NormConv2dBackwardData {
  static constexpr const char* kName = "norm_conv2d_backward_data";
  DP_ARGS(dy, w, dy2, x, y, stats, weight, bias, sums, dweight, dbias, dz);
  TensorDesc dy, w, dx;
  Window window;
  bool relu = false;
  bool add = false;
  bool renormalize = false;

  void check(const OpCheck& op) const {
    op.one_type({&dx, &w, &dy});
    check_conv(op, dx, w, dy, window);
    op.require(relu || !renormalize, "renormalisation requires a ReLU");
  }
  Product product() const {
    return {.kind = kName,
            .x = dx.shape,
            .w = w.shape,
            .y = dy.shape,
            .window = window,
            .normalises = true,
            .read_beside = 1 + (add ? 1 : 0) + (relu && !renormalize ? 1 : 0)};  // x, dy2, y
  }
};
DP_ON_EVERY_BACKEND(NormConv2dBackwardData);

// Conv2dBackwardWeights without bias, of z, which is recomputed from x as in NormConv2dForward.
struct NormConv2dBackwardWeights {
  static constexpr const char* kName = "norm_conv2d_backward_weights";
  DP_ARGS(x, stats, weight, bias, dy, dw);
  TensorDesc x, dy, dw;
  Window window;

  void check(const OpCheck& op) const {
    op.one_type({&x, &dy});
    op.compute_type({&dw});
    check_conv(op, x, dw, dy, window);
  }
  Product product() const {
    return {.kind = kName, .x = x.shape, .w = dw.shape, .y = dy.shape, .window = window, .normalises = true};
  }
};
DP_ON_EVERY_BACKEND(NormConv2dBackwardWeights);

// Layers fused with adjacent ops, for devices on which a launch costs as much as a small layer (Context::fuses,
// docs/decisions/0034). Each op gives the result of its members, run in sequence, with the same rounding to the
// activation type. The members specify the layouts of all tensors. A tensor that one member writes only for the next
// need not exist in memory.

// `linear`, then DropoutApply in place on y.
struct LinearDropoutForward {
  static constexpr const char* kName = "linear_dropout_forward";
  DP_ARGS(x, w, b, y, samples, inputs);  // b: may be null
  LinearForward linear;
  DropoutSpec dropout;

  void check(const OpCheck& op) const {
    linear.check(op);
    op.dropout(dropout);
  }
  Product product() const { return linear.product(); }
};
DP_ON_EVERY_BACKEND(LinearDropoutForward);

// `conv`, then `pool` of its result (pool.x is conv.y). y is pool.y; the last three args are as in MaxPool2dForward.
struct Conv2dPoolForward {
  static constexpr const char* kName = "conv2d_pool_forward";
  DP_ARGS(x, w, b, y, mask, samples, inputs);  // b: may be null
  Conv2dForward conv;
  MaxPool2dForward pool;

  void check(const OpCheck& op) const {
    conv.check(op);
    pool.check(op);
    op.require(conv.y.shape == pool.x.shape, "the pool's input shape differs from the convolution's output shape");
  }
  Product product() const { return without_intermediate(conv.product()); }
};
DP_ON_EVERY_BACKEND(Conv2dPoolForward);

// `data`, then ReluBackward of dx, with the layer's input x as its y. x has dx's layout.
struct Conv2dReluBackwardData {
  static constexpr const char* kName = "conv2d_relu_backward_data";
  DP_ARGS(dy, w, x, dx);
  Conv2dBackwardData data;

  void check(const OpCheck& op) const { data.check(op); }
  Product product() const { return data.product(); }
};
DP_ON_EVERY_BACKEND(Conv2dReluBackwardData);

// `data`, then `pool`, the gradient of the max-pool before the layer (pool.dy is data.dx). dx is pool.dx.
struct LinearPoolBackwardData {
  static constexpr const char* kName = "linear_pool_backward_data";
  DP_ARGS(dy, w, mask, dx);
  LinearBackwardData data;
  MaxPool2dBackward pool;

  void check(const OpCheck& op) const {
    data.check(op);
    pool.check(op);
    op.require(data.dx.shape == pool.dy.shape, "the layer's input shape differs from the pool's output shape");
  }
  Product product() const { return without_intermediate(data.product()); }
};
DP_ON_EVERY_BACKEND(LinearPoolBackwardData);

// `weights` and `data` of one layer, then ReluBackward of dx, with x as its y and `scale`.
struct LinearReluBackward {
  static constexpr const char* kName = "linear_relu_backward";
  DP_ARGS(x, dy, w, dw, db, dx);  // db: may be null
  LinearBackwardWeights weights;
  LinearBackwardData data;
  float scale = 1;

  void check(const OpCheck& op) const {
    weights.check(op);
    data.check(op);
    op.require(weights.x.shape == data.dx.shape && weights.dw.shape == data.w.shape,
               "the two gradients belong to different layers");
  }
  Product product() const {
    return Product{
        .kind = "linear_backward", .x = weights.x.shape, .w = weights.dw.shape, .y = weights.dy.shape, .gradients = 2};
  }
};
DP_ON_EVERY_BACKEND(LinearReluBackward);

// `linear`, which computes the logits, then `loss`.
struct LinearLoss {
  static constexpr const char* kName = "linear_loss";
  DP_ARGS(x, w, b, logits, labels, inputs, dlogits, results, scaler);  // as in LinearForward and SoftmaxCrossEntropy
  LinearForward linear;
  SoftmaxCrossEntropy loss;

  void check(const OpCheck& op) const {
    linear.check(op);
    loss.check(op);
    op.require(linear.y.shape == Shape{loss.batch, loss.classes}, "the loss's logits differ from the layer's output");
  }
  Product product() const { return linear.product(); }
};
DP_ON_EVERY_BACKEND(LinearLoss);

}  // namespace dp::kernels
