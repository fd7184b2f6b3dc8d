// A training run that covers everything that a step's graph may depend on, and its results for comparisons.
#pragma once

#include <bit>
#include <cstring>
#include <functional>
#include <map>

#include "cuda/engine/narrow_nets.h"
#include "simulated_cuda/simulation.h"

namespace dp::test {

struct Course {
  std::vector<NamedTensor> weights, state, average;
  std::vector<std::uint64_t> metrics;  // bit patterns of doubles
  std::string steps;                   // describe_steps(); not compared
  friend bool operator==(const Course& a, const Course& b) {
    return bit_equal(a.weights, b.weights) && bit_equal(a.state, b.state) && bit_equal(a.average, b.average) &&
           a.metrics == b.metrics;
  }
};

inline void keep(const Stats& stats, std::vector<std::uint64_t>& metrics) {
  for (const double value : {stats.loss_sum, static_cast<double>(stats.samples), static_cast<double>(stats.top1),
                             static_cast<double>(stats.top5), stats.grad_norm, static_cast<double>(stats.skipped),
                             static_cast<double>(stats.loss_scale.value_or(0))})
    metrics.push_back(std::bit_cast<std::uint64_t>(value));
}

// Three epochs with a smaller last batch, changing learning rates, an evaluation after each, a checkpoint loaded after
// the second, and final steps without momentum and with AdamW.
inline Course course_of(const Model& model, DataParallelOptions options, bool graphs) {
  if (!graphs) options.graphs = Graphs::never;
  DataParallel net(model, options);
  Course course;
  std::uint64_t number = 0;
  const auto step = [&](std::int64_t rows, Sgd sgd) { net.train_step(random_batch(model, rows, ++number), sgd); };
  std::vector<NamedTensor> weights;
  OptimizerState state;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 3; ++i)
      step(9, {.lr = 0.05f / static_cast<float>(1 + i + epoch), .momentum = 0.9f, .weight_decay = 1e-3f});
    // At least two rows for each of four replicas: batch normalisation of 1x1 images needs two.
    step(net.size() > 2 ? 8 : 5, {.lr = 0.01f, .momentum = 0.9f, .nesterov = epoch == 1});
    keep(net.take_stats(), course.metrics);
    net.evaluate(random_batch(model, 11, 1000));
    keep(net.take_stats(), course.metrics);
    if (epoch == 0) weights = net.weights(), state = net.optimizer_state();
    if (epoch == 1) net.set_weights(weights), net.set_optimizer_state(state);
  }
  for (int i = 0; i < 3; ++i) step(9, {.lr = 0.02f});
  for (int i = 0; i < 3; ++i) net.train_step(random_batch(model, 9, ++number), AdamW{.lr = 0.003f});
  keep(net.take_stats(), course.metrics);
  CHECK(net.replicas_identical());
  course.weights = net.weights();
  course.state = net.optimizer_state().tensors;
  if (options.ema_decay) course.average = net.average_weights();
  course.steps = net.describe_steps();
  return course;
}

// The work of each stream in the fourth and fifth step. Keys: the stream's index on its device, and the device.
// batch_of(i) returns the batch of step i; null: random_batch().
inline std::map<std::string, std::vector<std::string>> launches_of_steps(
    const Model& model, DataParallelOptions options, bool graphs,
    const std::function<Batch(std::uint64_t)>& batch_of = nullptr) {
  if (!graphs) options.graphs = Graphs::never;
  DataParallel net(model, options);
  const auto step = [&](std::uint64_t i) {
    net.train_step(batch_of ? batch_of(i) : random_batch(model, 8, i), Sgd{.lr = 0.05f, .momentum = 0.9f});
  };
  for (std::uint64_t i = 0; i < 3; ++i) step(i);
  simt::take_launches();
  simt::simulation().log_launches = true;
  for (std::uint64_t i = 3; i < 5; ++i) step(i);
  simt::simulation().log_launches = false;
  CHECK((net.describe_steps().find(" nodes") != std::string::npos) == graphs);
  std::map<int, std::vector<std::string>> by_number;  // "stream 7 of cuda:0": numbers are unique in the process
  std::map<int, std::string> device;
  for (auto& [stream, launches] : simt::take_launches()) {
    const int number = std::stoi(stream.substr(std::strlen("stream ")));
    by_number[number] = launches;
    device[number] = stream.substr(stream.find(" of "));
  }
  std::map<std::string, std::vector<std::string>> named;
  std::map<std::string, int> count;
  for (auto& [number, launches] : by_number)
    named[std::to_string(count[device[number]]++) + device[number]] = std::move(launches);
  return named;
}

}  // namespace dp::test
