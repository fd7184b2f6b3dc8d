// Narrow networks on real or simulated GPUs, compared with the float64 reference.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

inline Model narrow_convnet() { return models::mnist_convnet({.classes = 10, .width = 4, .input = {1, 14, 14}}); }
inline Model narrow_resnet(bool relu) {
  return models::resnet18({.classes = 10, .input = {3, 8, 8}, .width = 8, .relu = relu});
}

// Like worst_error(). Tensors with a norm below 1e-9 of the largest are zero except for rounding (a normalisation
// removes the mean of its input). Their error must be below 1e-6 of the largest norm.
inline Worst worst_of(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& expected,
                      const std::vector<NamedTensor>* origin = nullptr) {
  const auto norm = [&](const std::vector<NamedTensor>& all, std::size_t i, bool moved) {
    double sum = 0;
    for (std::int64_t at = 0; at < all[i].second.numel(); ++at) {
      const double x = value_at(all[i].second, at) - (moved ? value_at((*origin)[i].second, at) : 0);
      sum += x * x;
    }
    return std::sqrt(sum);
  };
  if (!same_names(got, expected) || (origin != nullptr && !same_names(*origin, expected)))
    return {kInfinitelyFar, "other tensors"};
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    largest = larger_error(largest, norm(expected, i, origin != nullptr));
  Worst worst;
  if (!std::isfinite(largest)) worst.take(largest, "what is expected");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (norm(expected, i, origin != nullptr) < 1e-9 * largest && got[i].second.shape() == expected[i].second.shape()) {
      INFO(expected[i].first << ", zero but for rounding");
      CHECK(norm(got, i, origin != nullptr) <= 1e-6 * largest);
      continue;
    }
    worst.take(relative_error(got[i].second, expected[i].second, origin ? &(*origin)[i].second : nullptr),
               expected[i].first);
  }
  return worst;
}

struct Outcome {
  std::vector<NamedTensor> gradients, state;
  Tensor predictions;
};

// One forward and backward pass in training mode, then a prediction.
inline Outcome forward_and_backward(const Model& model, DataParallelOptions options, const Batch& batch) {
  options.dropout = false;
  DataParallel net(model, options);
  net.backward(cross_entropy(net.forward(batch.images), batch.labels).grad);
  return {net.gradients(), net.weights(), net.predict(batch.images).clone()};
}

// The weights after one optimizer step.
inline std::vector<NamedTensor> step(const Model& model, DataParallelOptions options, const Batch& batch) {
  options.dropout = false;
  DataParallel net(model, options);
  net.train_step(batch, Sgd{.lr = 1.0f, .momentum = 0.9f, .weight_decay = 1e-3f});
  CHECK(net.replicas_identical());
  return net.weights();
}

inline std::vector<NamedTensor> five_steps(const Model& model, const DataParallelOptions& options, std::int64_t rows) {
  DataParallel net(model, options);
  for (std::uint64_t i = 0; i < 5; ++i)
    net.train_step(random_batch(model, rows, i), Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
  CHECK(net.take_stats().samples == 5 * rows);
  CHECK(net.replicas_identical());
  return net.weights();
}

inline void check_against_reference(const Model& model, const Batch& batch, DataParallelOptions options,
                                    BatchNormMode norm, Reduce reduce, const Outcome& expected,
                                    const std::vector<NamedTensor>& moved, const std::vector<NamedTensor>& origin,
                                    double gradient_bound = 1e-5) {
  options.batch_norm = norm;
  options.reduce = reduce;
  const Outcome got = forward_and_backward(model, options, batch);
  const Worst gradients = worst_of(got.gradients, expected.gradients), state = worst_of(got.state, expected.state);
  INFO(options.devices.size() << " replicas, reduce " << static_cast<int>(reduce) << ", gradient " << gradients.name
                              << ", state " << state.name);
  CHECK(gradients.error <= gradient_bound);
  CHECK(state.error <= 1e-5);
  CHECK(relative_error(got.predictions, expected.predictions) <= 1e-5);
  const Worst worst = worst_of(step(model, options, batch), moved, &origin);
  INFO("worst: " << worst.name);
  CHECK(worst.error <= 2e-5);  // relative to the change of the weights: float32 rounding, as on the CPU
}

inline constexpr Reduce kReductions[] = {Reduce::master, Reduce::all_reduce, Reduce::sharded};

}  // namespace dp::test
