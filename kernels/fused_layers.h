// Fused layers (ops.h, from LinearDropoutForward on) as sequences of their member ops. The sequence defines the result
// of the fused op for every backend, and implements it where no fused kernel exists.
#pragma once

#include "kernels/fused_steps.h"

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
  layer.steps.add(std::move(linear), {0, 1, 2, 3});
  layer.steps.add(std::move(dropout), {3, 3, 4, 5});
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
  layer.steps.add_between(std::move(conv), {0, 1, 2, FusedSteps<T>::kBetween}, between);
  layer.steps.add(std::move(pool), {FusedSteps<T>::kBetween, 3, 4, 5, 6});
  return layer;
}

template <typename Make>
auto layer_steps(const Conv2dReluBackwardData& d, const Make& make) {
  auto data = make(d.data);
  using T = typename decltype(data)::element_type;
  auto relu = make(ReluBackward{data->tensors()[2]});
  LayerSteps<T> layer{{}, data->tensors(), data->implementation() + ", " + relu->implementation()};
  layer.steps.add(std::move(data), {0, 1, 3});
  layer.steps.add(std::move(relu), {3, 2, 3});
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
  layer.steps.add_between(std::move(data), {0, 1, FusedSteps<T>::kBetween}, between);
  layer.steps.add(std::move(pool), {FusedSteps<T>::kBetween, 2, 3});
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
  layer.steps.add(std::move(weights), {0, 1, 3, 4});
  layer.steps.add(std::move(data), {1, 2, 5});
  layer.steps.add(std::move(relu), {5, 0, 5});
  return layer;
}

template <typename Make>
auto layer_steps(const LinearLoss& d, const Make& make) {
  auto linear = make(d.linear);
  using T = typename decltype(linear)::element_type;
  auto loss = make(d.loss);
  LayerSteps<T> layer{{}, linear->tensors(), linear->implementation() + ", " + loss->implementation()};
  layer.steps.add(std::move(linear), {0, 1, 2, 3});
  layer.steps.add(std::move(loss), {3, 4, 5, 6, 7, 8});
  return layer;
}

template <typename Desc>
concept FusedLayer = std::is_same_v<Desc, LinearDropoutForward> || std::is_same_v<Desc, Conv2dPoolForward> ||
    std::is_same_v<Desc, Conv2dReluBackwardData> || std::is_same_v<Desc, LinearPoolBackwardData> ||
    std::is_same_v<Desc, LinearReluBackward> || std::is_same_v<Desc, LinearLoss>;

}  // namespace dp::kernels
