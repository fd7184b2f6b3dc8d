// Ops that compute several others at once. The members of each, run in sequence, define its result.
#pragma once

#include <optional>

#include "kernels/conv/op.h"
#include "kernels/elementwise/op.h"
#include "kernels/fused/members.h"
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

// Adds the normalisation of x with ReLU. Its result is the intermediate tensor. `at`: positions of the fused op.
template <typename T, typename Make, typename At>
void add_normalized(Members<T>& members, const Make& make, const TensorDesc& x, const At& at) {
  members.template add_between<BatchNormForward>(make(BatchNormForward{x, true, false}),
                                                 {.x = at.x,
                                                  .stats = at.stats,
                                                  .weight = at.weight,
                                                  .bias = at.bias,
                                                  .addend = Members<T>::kNone,
                                                  .y = Members<T>::kBetween},
                                                 x);
}

// Conv2dForward of z, without bias and ReLU. If `moments`, then BatchNormMoments of y with `eps`. z is x or, if `norm`,
// the result of BatchNormForward with relu on x. stats, weight and bias are null without norm, moments without
// `moments`, y_stats without eps.
struct NormConv2dForward {
  static constexpr bool kFused = true;
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
  // The convolution that this op contains.
  Conv2dForward convolution() const { return {x, w, y, window, false, false}; }
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    std::unique_ptr<T> conv = make(convolution());
    members.tensors = conv->tensors();
    members.name = conv->implementation();
    const TensorDesc in = members.tensors[0], out = members.tensors[2];
    constexpr auto at = positions<NormConv2dForward>();
    if (norm) add_normalized(members, make, in, at);
    members.template add<Conv2dForward>(
        std::move(conv), {.x = norm ? Members<T>::kBetween : at.x, .w = at.w, .b = Members<T>::kNone, .y = at.y});
    if (moments)
      members.template add<BatchNormMoments>(
          make(BatchNormMoments{out, eps}),
          {.x = at.y, .moments = at.moments, .stats = eps ? at.y_stats : Members<T>::kNone});
  }
};
DP_ON_CUDA(NormConv2dForward);

// Conv2dBackwardData into dx, the gradient of a batch normalisation's result y, then BatchNormBackwardSums of that
// normalisation. `add`: of dx + dy2. `relu`: the gradient passes only where y > 0. `renormalize`: y is null and is
// recomputed from x, as NormConv2dForward computes z. All tensors but dy and w have dx's layout. dz must not alias
// another argument. dy2 is null without add, y without relu and with renormalize, weight and bias without renormalize.
struct NormConv2dBackwardData {
  static constexpr bool kFused = true;
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
  // The convolution that this op contains.
  Conv2dBackwardData convolution() const { return {dy, w, dx, window}; }
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    std::unique_ptr<T> conv = make(convolution());
    members.tensors = conv->tensors();
    members.name = conv->implementation();
    const TensorDesc in = members.tensors[2];
    constexpr auto at = positions<NormConv2dBackwardData>();
    if (renormalize) add_normalized(members, make, in, at);
    const bool masks = relu || add;
    members.template add<Conv2dBackwardData>(std::move(conv), {.dy = at.dy, .w = at.w, .dx = at.dz});
    members.template add<BatchNormBackwardSums>(make(BatchNormBackwardSums{in, relu}),
                                                {.dy = at.dz,
                                                 .dy2 = add ? at.dy2 : Members<T>::kNone,
                                                 .x = at.x,
                                                 .y = !relu         ? Members<T>::kNone
                                                      : renormalize ? Members<T>::kBetween
                                                                    : at.y,
                                                 .stats = at.stats,
                                                 .sums = at.sums,
                                                 .dweight = at.dweight,
                                                 .dbias = at.dbias,
                                                 .dz = masks ? at.dz : Members<T>::kNone});
  }
};
DP_ON_CUDA(NormConv2dBackwardData);

// Conv2dBackwardWeights without bias, of z, which is recomputed from x as in NormConv2dForward.
struct NormConv2dBackwardWeights {
  static constexpr bool kFused = true;
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
  // The convolution that this op contains.
  Conv2dBackwardWeights convolution() const { return {x, dy, dw, window, false}; }
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    std::unique_ptr<T> conv = make(convolution());
    members.tensors = conv->tensors();
    members.name = conv->implementation();
    const TensorDesc in = members.tensors[0];
    constexpr auto at = positions<NormConv2dBackwardWeights>();
    add_normalized(members, make, in, at);
    members.template add<Conv2dBackwardWeights>(
        std::move(conv), {.x = Members<T>::kBetween, .dy = at.dy, .dw = at.dw, .db = Members<T>::kNone});
  }
};
DP_ON_CUDA(NormConv2dBackwardWeights);

// Layers fused with adjacent ops, for devices on which a launch costs as much as a small layer (Context::fuses,
// docs/decisions/0034). Each op gives the result of its members, run in sequence, with the same rounding to the
// activation type. The members specify the layouts of all tensors. A tensor that one member writes only for the next
// need not exist in memory.

// `linear`, then DropoutApply in place on y.
struct LinearDropoutForward {
  static constexpr bool kFused = true;
  static constexpr const char* kName = "linear_dropout_forward";
  DP_ARGS(x, w, b, y, samples, inputs);  // b: may be null
  LinearForward linear;
  DropoutSpec dropout;

  void check(const OpCheck& op) const {
    linear.check(op);
    op.dropout(dropout);
  }
  Product product() const { return linear.product(); }
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    auto linear_op = make(linear);
    auto dropout_op = make(DropoutApply{linear_op->tensors()[2], dropout});
    members.tensors = linear_op->tensors();
    members.name = linear_op->implementation() + ", " + dropout_op->implementation();
    constexpr auto at = positions<LinearDropoutForward>();
    members.template add<LinearForward>(std::move(linear_op), {.x = at.x, .w = at.w, .b = at.b, .y = at.y});
    members.template add<DropoutApply>(std::move(dropout_op),
                                       {.x = at.y, .y = at.y, .samples = at.samples, .inputs = at.inputs});
  }
};
DP_ON_CUDA(LinearDropoutForward);

// Makes `pool`, whose `input` is the third tensor of `first`, and enters the tensors and the name of both. The result
// of `first` is not among the arguments of the fused op.
template <typename T, typename Pool, typename Make>
std::unique_ptr<T> pool_of(Members<T>& members, const T& first, Pool pool, TensorDesc Pool::*input, const Make& make) {
  members.tensors = first.tensors();
  pool.*input = first.tensors()[2];
  std::unique_ptr<T> op = make(pool);
  members.tensors.push_back(op->tensors()[1]);
  members.name = first.implementation() + ", " + op->implementation();
  return op;
}

// `conv`, then `pool` of its result (pool.x is conv.y). y is pool.y; the last three args are as in MaxPool2dForward.
struct Conv2dPoolForward {
  static constexpr bool kFused = true;
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
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    auto conv_op = make(conv);
    const TensorDesc between = conv_op->tensors()[2];
    auto pool_op = pool_of(members, *conv_op, pool, &MaxPool2dForward::x, make);
    constexpr auto at = positions<Conv2dPoolForward>();
    constexpr Position inner = Members<T>::kBetween;
    members.template add_between<Conv2dForward>(std::move(conv_op), {.x = at.x, .w = at.w, .b = at.b, .y = inner},
                                                between);
    members.template add<MaxPool2dForward>(
        std::move(pool_op), {.x = inner, .y = at.y, .mask = at.mask, .samples = at.samples, .inputs = at.inputs});
  }
};
DP_ON_CUDA(Conv2dPoolForward);

// `data`, then ReluBackward of dx, with the layer's input x as its y. x has dx's layout.
struct Conv2dReluBackwardData {
  static constexpr bool kFused = true;
  static constexpr const char* kName = "conv2d_relu_backward_data";
  DP_ARGS(dy, w, x, dx);
  Conv2dBackwardData data;

  void check(const OpCheck& op) const { data.check(op); }
  Product product() const { return data.product(); }
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    auto data_op = make(data);
    auto relu_op = make(ReluBackward{data_op->tensors()[2]});
    members.tensors = data_op->tensors();
    members.name = data_op->implementation() + ", " + relu_op->implementation();
    constexpr auto at = positions<Conv2dReluBackwardData>();
    members.template add<Conv2dBackwardData>(std::move(data_op), {.dy = at.dy, .w = at.w, .dx = at.dx});
    members.template add<ReluBackward>(std::move(relu_op), {.dy = at.dx, .y = at.x, .dx = at.dx});
  }
};
DP_ON_CUDA(Conv2dReluBackwardData);

// `data`, then `pool`, the gradient of the max-pool before the layer (pool.dy is data.dx). dx is pool.dx.
struct LinearPoolBackwardData {
  static constexpr bool kFused = true;
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
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    auto data_op = make(data);
    const TensorDesc between = data_op->tensors()[2];
    auto pool_op = pool_of(members, *data_op, pool, &MaxPool2dBackward::dy, make);
    constexpr auto at = positions<LinearPoolBackwardData>();
    constexpr Position inner = Members<T>::kBetween;
    members.template add_between<LinearBackwardData>(std::move(data_op), {.dy = at.dy, .w = at.w, .dx = inner},
                                                     between);
    members.template add<MaxPool2dBackward>(std::move(pool_op), {.dy = inner, .mask = at.mask, .dx = at.dx});
  }
};
DP_ON_CUDA(LinearPoolBackwardData);

// `weights` and `data` of one layer, then ReluBackward of dx, with x as its y and `scale`.
struct LinearReluBackward {
  static constexpr bool kFused = true;
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
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    auto weights_op = make(weights);
    auto data_op = make(data);
    auto relu_op = make(ReluBackward{data_op->tensors()[2], scale});
    members.tensors = weights_op->tensors();
    members.name = weights_op->implementation() + ", " + data_op->implementation() + ", " + relu_op->implementation();
    members.tensors.push_back(data_op->tensors()[1]);
    members.tensors.push_back(data_op->tensors()[2]);
    constexpr auto at = positions<LinearReluBackward>();
    members.template add<LinearBackwardWeights>(std::move(weights_op),
                                                {.x = at.x, .dy = at.dy, .dw = at.dw, .db = at.db});
    members.template add<LinearBackwardData>(std::move(data_op), {.dy = at.dy, .w = at.w, .dx = at.dx});
    members.template add<ReluBackward>(std::move(relu_op), {.dy = at.dx, .y = at.x, .dx = at.dx});
  }
};
DP_ON_CUDA(LinearReluBackward);

// `linear`, which computes the logits, then `loss`.
struct LinearLoss {
  static constexpr bool kFused = true;
  static constexpr const char* kName = "linear_loss";
  DP_ARGS(x, w, b, logits, targets, inputs, dlogits, results, scaler);  // as in LinearForward and SoftmaxCrossEntropy
  LinearForward linear;
  SoftmaxCrossEntropy loss;

  void check(const OpCheck& op) const {
    linear.check(op);
    loss.check(op);
    op.require(linear.y.shape == Shape{loss.batch, loss.classes}, "the loss's logits differ from the layer's output");
  }
  Product product() const { return linear.product(); }
  template <typename T, typename Make>
  void add_members(Members<T>& members, const Make& make) const {
    auto linear_op = make(linear);
    auto loss_op = make(loss);
    members.tensors = linear_op->tensors();
    members.name = linear_op->implementation() + ", " + loss_op->implementation();
    constexpr auto at = positions<LinearLoss>();
    members.template add<LinearForward>(std::move(linear_op), {.x = at.x, .w = at.w, .b = at.b, .y = at.logits});
    members.template add<SoftmaxCrossEntropy>(std::move(loss_op), {.logits = at.logits,
                                                                   .targets = at.targets,
                                                                   .inputs = at.inputs,
                                                                   .dlogits = at.dlogits,
                                                                   .results = at.results,
                                                                   .scaler = at.scaler});
  }
};
DP_ON_CUDA(LinearLoss);

}  // namespace dp::kernels
