#include "golden/resnet_cases.h"

#include <cmath>

#include "golden/resnet_golden.h"
#include "support/catch.h"

namespace dp::test {
namespace {

double running_error(const HostTensor& golden, const Tensor& before, const Tensor& after) {
  REQUIRE(golden.shape == after.shape());
  double off = 0, moved = 0;
  for (std::int64_t i = 0; i < after.numel(); ++i) {
    const double value = golden.values[static_cast<std::size_t>(i)];
    off += std::pow(value_at(after, i) - value, 2);
    moved += std::pow(value_at(before, i) - value, 2);
  }
  return std::sqrt(off / moved);
}

}  // namespace

ResnetErrors resnet_errors(const GoldenFile& golden, const ResnetCase& which, DataParallelOptions options) {
  options.batch_norm = BatchNormMode::sync;
  options.dropout = false;
  const Model& model = which.model;
  DataParallel net(model, options);
  const auto before = resnet_state(model.name(), net.weights());
  net.set_weights(before);
  const Batch batch = resnet_batch(model, which.rows, which.number);
  ResnetErrors errors;
  const Tensor& logits = net.forward(batch.images);
  errors.logits = golden_error(golden, which.name + ".logits", logits);
  const Loss loss = cross_entropy(logits, batch.labels);
  CHECK(loss.value == Approx(golden.values(which.name + ".loss").values[0]).epsilon(1e-5));
  net.backward(loss.grad);
  for (const auto& [name, gradient] : net.gradients())
    errors.gradient.take(golden_error(golden, which.name + ".gradient." + name, gradient), name);
  const auto after = net.weights();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::string name = which.name + ".running." + after[i].first;
    if (golden.has(name))
      errors.running.take(running_error(golden.values(name), before[i].second, after[i].second), name);
    else if (golden.has(name + ".products"))
      errors.running.take(golden_error(golden, name, after[i].second), name);
  }
  errors.predictions = golden_error(golden, which.name + ".predictions", net.predict(batch.images));
  return errors;
}

void check_resnet_errors(const ResnetErrors& errors, double gradient, double others) {
  INFO("running statistics: " << errors.running.name << ", gradients: " << errors.gradient.name);
  CHECK(errors.logits <= others);
  CHECK(errors.running.error <= others);
  CHECK(errors.predictions <= others);
  CHECK(errors.gradient.error <= gradient);
}

void check_fused_resnet(const GoldenFile& golden, const ResnetCase& which, int replicas, int stages, double gradient) {
  const Model& model = which.model;
  DataParallelOptions options = on_cpus(replicas * stages);
  options.batch_norm = BatchNormMode::sync;
  options.dropout = false;
  options.exact_convolutions = true;
  if (stages > 1) options.pipeline = {.stages = stages, .micro_batches = 1};  // the statistics are those of all rows
  DataParallel net(model, options);
  net.set_weights(resnet_state(model.name(), net.weights()));
  net.train_step(resnet_batch(model, which.rows, which.number), Sgd{.lr = 0.1f});
  CHECK(net.take_stats().loss() == Approx(golden.values(which.name + ".loss").values[0]).epsilon(1e-5));
  Worst worst;
  for (const auto& [name, tensor] : net.gradients())
    worst.take(golden_error(golden, which.name + ".gradient." + name, tensor), name);
  INFO(worst.name);
  CHECK(worst.error <= gradient);
}

void check_resnet_start(const GoldenFile& golden, const Model& model, int parameters) {
  DataParallel net(model, on_cpus(1));
  const auto weights = net.weights();
  int compared = 0;
  for (const auto& [name, tensor] : weights) {
    if (!golden.has("initial." + name)) continue;
    ++compared;
    INFO(name);
    double mean = 0, square = 0;
    const auto count = static_cast<double>(tensor.numel());
    for (const float value : tensor.span<float>()) mean += value;
    mean /= count;
    for (const float value : tensor.span<float>()) square += std::pow(value - mean, 2) / count;
    const std::vector<double> expected = golden.values("initial." + name).values;
    CHECK(std::abs(std::sqrt(square) - expected[1]) <= 5 / std::sqrt(count) * expected[1] + 1e-12);
    CHECK(mean == Approx(expected[0]).epsilon(0).margin(6 * expected[1] / std::sqrt(count)));
  }
  CHECK(compared == parameters);
}

}  // namespace dp::test
