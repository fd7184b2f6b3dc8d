// Compares training with frozen layers and training in which the same layers have a learning rate and a weight decay of
// zero, for every kind of device. The weights of all layers must have equal bits.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/test_modes.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

// The weights, and the optimizer's state of the parameters that are not in a group, after three steps.
struct TrainedBits {
  std::vector<std::pair<std::string, Tensor>> weights, state;
};

inline TrainedBits train_with_groups(const Model& model, DataParallelOptions options,
                                     std::vector<ParameterGroup> groups, std::int64_t rows) {
  const auto is_in_a_group = [&](const std::string& name) {
    return std::ranges::any_of(groups, [&](const ParameterGroup& group) {
      const std::string start = group.pattern.substr(0, group.pattern.size() - 1);
      return name.find("." + start) != std::string::npos;  // "momentum_buffer.conv1.weight"
    });
  };
  options.parameter_groups = groups;
  DataParallel net(model, options);
  for (int step = 0; step < 3; ++step)
    net.train_step(random_batch(model, rows, static_cast<std::uint64_t>(step)),
                   Sgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f});
  CHECK(net.replicas_identical());
  TrainedBits bits{net.weights(), {}};
  for (auto& [name, tensor] : net.optimizer_state().tensors)
    if (!is_in_a_group(name)) bits.state.emplace_back(name, std::move(tensor));
  return bits;
}

// Patterns end in '*'. If there are fewer rows than replicas, some replicas have no rows.
inline void check_frozen_layers(const DataParallelOptions& given, const std::vector<const char*>& patterns,
                                std::int64_t rows) {
  const Model model = residual_net();
  std::vector<ParameterGroup> frozen, slow;
  std::string text;
  for (const char* pattern : patterns) {
    frozen.push_back({.pattern = pattern, .frozen = true});
    slow.push_back({.pattern = pattern, .lr_factor = 0, .weight_decay = 0.0f});
    text += std::string(" ") + pattern;
  }
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync}) {
    INFO("frozen:" << text << ", mode " << static_cast<int>(mode) << ", rows " << rows);
    DataParallelOptions options = given;
    options.batch_norm = mode;
    const TrainedBits a = train_with_groups(model, options, frozen, rows);
    const TrainedBits b = train_with_groups(model, options, slow, rows);
    CHECK(bit_equal(a.weights, b.weights));
    CHECK(!a.state.empty());
    CHECK(bit_equal(a.state, b.state));
  }
}

}  // namespace dp::test
