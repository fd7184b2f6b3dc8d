#include "engine/random_graphs/graph_gradients.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/test_modes.h"
#include "engine/random_graphs/random_graph.h"
#include "support/catch.h"

namespace dp::test {
namespace {

using Tensors = std::vector<NamedTensor>;

constexpr double kStep = 1e-4;          // norm of a tensor's displacement
constexpr double kRoughness = 1e-5;     // relative to the slope; a kink exceeds it
constexpr double kPerturbation = 1e-6;  // relative, per weight: tens of float32 roundings
constexpr double kSteadiness = 1e-4;    // largest relative gradient change under it
constexpr int kDraws = 100;

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) sum += value_at(tensor, i) * value_at(tensor, i);
  return std::sqrt(sum);
}

// Some gradients are zero up to rounding, for example of a bias before a normalisation. A fraction of the whole
// gradient's norm replaces their own.
double size_of_gradient(double own, double whole) { return std::max(own, 1e-3 * whole); }

double whole_norm(const Tensors& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) sum += std::pow(norm_of(tensor), 2);
  return std::sqrt(sum);
}

Worst distance(const Tensors& got, const Tensors& expected) {
  Worst worst;
  if (got.size() != expected.size()) worst.take(INFINITY, "number of tensors");
  const double whole = whole_norm(expected);
  for (std::size_t t = 0; t < std::min(got.size(), expected.size()); ++t) {
    const double own = norm_of(expected[t].second);
    worst.take(relative_error(got[t].second, expected[t].second) * (own > 0 ? own : 1) / size_of_gradient(own, whole),
               expected[t].first);
  }
  return worst;
}

// A graph with weights, images and a direction in logit space. The loss is the dot product of logits and direction.
struct Problem {
  Model model;
  Tensors weights;  // parameters with values that float32 represents exactly
  Tensor images;
  std::vector<double> direction;
};

Tensor as(DType type, const Shape& shape, const std::vector<double>& values) {
  Tensor tensor(shape, type);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (type == DType::f64)
      tensor.data<double>()[i] = values[i];
    else
      tensor.data<float>()[i] = static_cast<float>(values[i]);
  return tensor;
}

Tensors gradients_of(DataParallel& net, const Problem& problem) {
  net.set_step_count(0);  // same dropout masks
  const Tensor& logits = net.forward(problem.images);
  net.backward(as(logits.dtype(), logits.shape(), problem.direction));
  return net.gradients();
}

Tensors gradients_of(const DataParallelOptions& options, const Problem& problem) {
  DataParallel net(problem.model, options);
  net.set_weights(problem.weights);
  return gradients_of(net, problem);
}

double loss_of(DataParallel& net, const Problem& problem) {
  net.set_step_count(0);
  const Tensor& logits = net.forward(problem.images);
  double loss = 0;
  for (std::int64_t i = 0; i < logits.numel(); ++i)
    loss += value_at(logits, i) * problem.direction[static_cast<std::size_t>(i)];
  return loss;
}

// The loss along a line: every element of one tensor moves by the same distance, up or down.
struct Line {
  double slope = 0;
  double roughness = 0;  // smooth loss: about h^3 and rounding; kink: about its jump
};

Line line_of(DataParallel& net, const Problem& problem, double loss, const NamedTensor& weights,
             const std::vector<double>& signs) {
  const double h = kStep / std::sqrt(static_cast<double>(signs.size()));
  const auto at = [&](double by) {
    std::vector<double> moved = signs;
    for (std::size_t i = 0; i < moved.size(); ++i)
      moved[i] = value_at(weights.second, static_cast<std::int64_t>(i)) + by * signs[i];
    net.set_weights({{weights.first, as(DType::f64, weights.second.shape(), moved)}});
    return loss_of(net, problem);
  };
  const double below = at(-h), half_below = at(-h / 2), half_above = at(h / 2), above = at(h);
  net.set_weights({weights});
  const double wide = (above - below) / (2 * h), narrow = (half_above - half_below) / h;
  const double curved = (above + below - 2 * loss) / h, half_curved = 4 * (half_above + half_below - 2 * loss) / h;
  return {narrow + (narrow - wide) / 3, std::max(std::abs(wide - narrow), std::abs(half_curved - curved))};
}

// Error of the gradients against difference quotients; nothing if the loss has a kink nearby. The kink test uses the
// loss only, never the gradients.
std::optional<Worst> difference_error(DataParallel& net, const Problem& problem, const Tensors& gradients,
                                      Random& random) {
  std::vector<double> slopes, expected, roughness;
  const double loss = loss_of(net, problem);
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    std::vector<double> signs(static_cast<std::size_t>(gradients[t].second.numel()));
    double along = 0;
    for (std::size_t i = 0; i < signs.size(); ++i) {
      signs[i] = random.below(2) == 0 ? -1 : 1;
      along += signs[i] * value_at(gradients[t].second, static_cast<std::int64_t>(i));
    }
    const Line line = line_of(net, problem, loss, problem.weights[t], signs);
    slopes.push_back(line.slope), expected.push_back(along), roughness.push_back(line.roughness);
  }
  double whole = 0;
  for (const double slope : slopes) whole = std::hypot(whole, slope);
  for (std::size_t t = 0; t < slopes.size(); ++t)
    if (!(roughness[t] <= kRoughness * size_of_gradient(std::abs(slopes[t]), whole))) return {};
  Worst worst;
  const double whole_gradient = whole_norm(gradients);
  for (std::size_t t = 0; t < slopes.size(); ++t)
    worst.take(std::abs(slopes[t] - expected[t]) /
                   size_of_gradient(std::max(norm_of(gradients[t].second), std::abs(slopes[t])), whole_gradient),
               gradients[t].first);
  return worst;
}

// Whether float64 gradients barely change if each weight moves by a few float32 roundings.
bool is_steady(DataParallel& net, const Problem& problem, const Tensors& gradients, Random& random) {
  bool steady = true;
  for (int trial = 0; trial < 3 && steady; ++trial) {
    Tensors moved;
    for (const auto& [name, weights] : problem.weights) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < weights.numel(); ++i)
        values.push_back(value_at(weights, i) * (1 + kPerturbation * double{random.uniform(-1, 1)}));
      moved.emplace_back(name, as(DType::f64, weights.shape(), values));
    }
    net.set_weights(moved);
    steady = distance(gradients_of(net, problem), gradients).error <= kSteadiness;
  }
  net.set_weights(problem.weights);
  return steady;
}

// Initial weights from the builder; random scales and shifts for normalisations. With shifts of zero, those of zeros (a
// border, or images where a ReLU is never positive) would be at the kink of a ReLU for all images.
Tensors draw_weights(DataParallel& net, Random& random) {
  Tensors weights = net.gradients();  // for names and shapes
  const Tensors state = net.weights();
  for (auto& [name, tensor] : weights) {
    const auto initial =
        std::find_if(state.begin(), state.end(), [&, &n = name](const auto& s) { return s.first == n; });
    tensor = initial->second.clone();
    if (!name.starts_with("bn") && !name.starts_with("gn") && !name.starts_with("layer_norm")) continue;
    for (double& value : tensor.span<double>())
      value = name.ends_with("weight") ? random.uniform(0.5f, 1.5f) : random.uniform(-0.5f, 0.5f);
  }
  return weights;
}

void draw_batch(Problem& problem, std::int64_t rows, Random& random) {
  problem.images = Tensor(problem.model.input().prepended(rows));
  for (float& x : problem.images.span<float>()) x = random.uniform(-1, 1);
  problem.direction.assign(static_cast<std::size_t>(rows * problem.model.output()[0]), 0);
  for (double& d : problem.direction) d = random.uniform(-1, 1);
}

Tensors fused_gradients(const DataParallelOptions& options, const Problem& problem) {
  engine::test_modes().norm_fusion = kernels::NormFusion::always;
  const Tensors gradients = gradients_of(options, problem);
  engine::test_modes().norm_fusion = kernels::NormFusion::measured;
  return gradients;
}

}  // namespace

void GraphErrors::take(const GraphErrors& other) {
  differences.take(other.differences.error, other.differences.name);
  fused.take(other.fused.error, other.fused.name);
  sync.take(other.sync.error, other.sync.name);
  single.take(other.single.error, other.single.name);
  single_fused.take(other.single_fused.error, other.single_fused.name);
  draws += other.draws;
}

GraphErrors check_gradients(std::uint64_t seed, const DataParallelOptions& device) {
  Random random(seed, RandomUse::synthetic, 18);
  Problem problem{random_graph(seed), {}, {}, {}};
  DataParallel net(problem.model, on_reference());
  problem.weights = draw_weights(net, random);
  net.set_weights(problem.weights);
  const std::int64_t rows = 2 + random.below(3);

  GraphErrors errors;
  Tensors gradients;
  for (bool smooth = false; !smooth;) {
    INFO(problem.model.name() << ": no images of " << kDraws << " draws are away from kinks");
    REQUIRE(errors.draws < kDraws);
    ++errors.draws;
    draw_batch(problem, rows, random);
    gradients = gradients_of(net, problem);
    const auto error = difference_error(net, problem, gradients, random);
    smooth = error && is_steady(net, problem, gradients, random);
    if (smooth) errors.differences = *error;
  }
  errors.fused = distance(fused_gradients(on_reference(), problem), gradients);
  DataParallelOptions together = on_reference();
  together.devices.resize(2 + seed % 2, together.devices.front());
  together.batch_norm = BatchNormMode::sync;
  errors.sync = distance(fused_gradients(together, problem), gradients);
  const Tensors single = gradients_of(device, problem);
  errors.single = distance(single, gradients);
  errors.single_fused = distance(fused_gradients(device, problem), single);

  INFO(problem.model.name() << ", tensors " << errors.differences.name << ", " << errors.sync.name << ", "
                            << errors.single.name << ", " << errors.single_fused.name);
  CHECK(errors.fused.error == 0);
  // About ten times the largest error of 2,000 graphs. In float32 the largest errors are those of normalisations over a
  // few nearly equal values.
  CHECK(errors.differences.error <= 1e-7);
  CHECK(errors.sync.error <= 1e-11);
  CHECK(errors.single.error <= 1e-3);
  CHECK(errors.single_fused.error <= 1e-6);
  return errors;
}

}  // namespace dp::test
