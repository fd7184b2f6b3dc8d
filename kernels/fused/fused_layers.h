// Fused layers (ops.h, from LinearDropoutForward on) as sequences of their member ops. The sequence defines the result
// of the fused op for every backend, and implements it where no fused kernel exists.
#pragma once

#include "kernels/fused/fused_steps.h"

namespace dp::kernels {

// `T` is the backend's op type.
template <typename T>
struct LayerSteps {
  FusedSteps<T> steps;
  std::vector<TensorDesc> tensors;  // of the first member, then those that later members add; resolved
  std::string name;                 // the members' implementations, separated by commas
};

// make(descriptor) returns a std::unique_ptr<T> for a member. One overload per fused layer.
template <typename Make>
auto layer_steps(const LinearDropoutForward& d, const Make& make) {
  auto linear = make(d.linear);
  using T = typename decltype(linear)::element_type;
  auto dropout = make(DropoutApply{linear->tensors()[2], d.dropout});
  LayerSteps<T> layer{{}, linear->tensors(), linear->implementation() + ", " + dropout->implementation()};
  constexpr auto at = positions<LinearDropoutForward>();
  layer.steps.template add<LinearForward>(std::move(linear), {.x = at.x, .w = at.w, .b = at.b, .y = at.y});
  layer.steps.template add<DropoutApply>(std::move(dropout),
                                         {.x = at.y, .y = at.y, .samples = at.samples, .inputs = at.inputs});
  return layer;
}

template <typename Make>
auto layer_steps(const Conv2dPoolForward& d, const Make& make) {
  auto conv = make(d.conv);
  using T = typename decltype(conv)::element_type;
  const TensorDesc between = conv->tensors()[2];
  MaxPool2dForward pooling = d.pool;
  pooling.x = between;
  auto pool = make(pooling);
  LayerSteps<T> layer{{}, conv->tensors(), conv->implementation() + ", " + pool->implementation()};
  layer.tensors.push_back(pool->tensors()[1]);
  constexpr auto at = positions<Conv2dPoolForward>();
  constexpr Position inner = FusedSteps<T>::kBetween;
  layer.steps.template add_between<Conv2dForward>(std::move(conv), {.x = at.x, .w = at.w, .b = at.b, .y = inner},
                                                  between);
  layer.steps.template add<MaxPool2dForward>(
      std::move(pool), {.x = inner, .y = at.y, .mask = at.mask, .samples = at.samples, .inputs = at.inputs});
  return layer;
}

template <typename Make>
auto layer_steps(const Conv2dReluBackwardData& d, const Make& make) {
  auto data = make(d.data);
  using T = typename decltype(data)::element_type;
  auto relu = make(ReluBackward{data->tensors()[2]});
  LayerSteps<T> layer{{}, data->tensors(), data->implementation() + ", " + relu->implementation()};
  constexpr auto at = positions<Conv2dReluBackwardData>();
  layer.steps.template add<Conv2dBackwardData>(std::move(data), {.dy = at.dy, .w = at.w, .dx = at.dx});
  layer.steps.template add<ReluBackward>(std::move(relu), {.dy = at.dx, .y = at.x, .dx = at.dx});
  return layer;
}

template <typename Make>
auto layer_steps(const LinearPoolBackwardData& d, const Make& make) {
  auto data = make(d.data);
  using T = typename decltype(data)::element_type;
  const TensorDesc between = data->tensors()[2];
  MaxPool2dBackward pooling = d.pool;
  pooling.dy = between;
  auto pool = make(pooling);
  LayerSteps<T> layer{{}, data->tensors(), data->implementation() + ", " + pool->implementation()};
  layer.tensors.push_back(pool->tensors()[1]);
  constexpr auto at = positions<LinearPoolBackwardData>();
  constexpr Position inner = FusedSteps<T>::kBetween;
  layer.steps.template add_between<LinearBackwardData>(std::move(data), {.dy = at.dy, .w = at.w, .dx = inner}, between);
  layer.steps.template add<MaxPool2dBackward>(std::move(pool), {.dy = inner, .mask = at.mask, .dx = at.dx});
  return layer;
}

template <typename Make>
auto layer_steps(const LinearReluBackward& d, const Make& make) {
  auto weights = make(d.weights);
  using T = typename decltype(weights)::element_type;
  auto data = make(d.data);
  auto relu = make(ReluBackward{data->tensors()[2], d.scale});
  LayerSteps<T> layer{{},
                      weights->tensors(),
                      weights->implementation() + ", " + data->implementation() + ", " + relu->implementation()};
  layer.tensors.push_back(data->tensors()[1]);
  layer.tensors.push_back(data->tensors()[2]);
  constexpr auto at = positions<LinearReluBackward>();
  layer.steps.template add<LinearBackwardWeights>(std::move(weights),
                                                  {.x = at.x, .dy = at.dy, .dw = at.dw, .db = at.db});
  layer.steps.template add<LinearBackwardData>(std::move(data), {.dy = at.dy, .w = at.w, .dx = at.dx});
  layer.steps.template add<ReluBackward>(std::move(relu), {.dy = at.dx, .y = at.x, .dx = at.dx});
  return layer;
}

template <typename Make>
auto layer_steps(const LinearLoss& d, const Make& make) {
  auto linear = make(d.linear);
  using T = typename decltype(linear)::element_type;
  auto loss = make(d.loss);
  LayerSteps<T> layer{{}, linear->tensors(), linear->implementation() + ", " + loss->implementation()};
  constexpr auto at = positions<LinearLoss>();
  layer.steps.template add<LinearForward>(std::move(linear), {.x = at.x, .w = at.w, .b = at.b, .y = at.logits});
  layer.steps.template add<SoftmaxCrossEntropy>(std::move(loss), {.logits = at.logits,
                                                                  .labels = at.labels,
                                                                  .inputs = at.inputs,
                                                                  .dlogits = at.dlogits,
                                                                  .results = at.results,
                                                                  .scaler = at.scaler});
  return layer;
}

template <typename Desc>
concept FusedLayer = std::is_same_v<Desc, LinearDropoutForward> || std::is_same_v<Desc, Conv2dPoolForward> ||
    std::is_same_v<Desc, Conv2dReluBackwardData> || std::is_same_v<Desc, LinearPoolBackwardData> ||
    std::is_same_v<Desc, LinearReluBackward> || std::is_same_v<Desc, LinearLoss>;

}  // namespace dp::kernels
