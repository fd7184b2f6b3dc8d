// The engine's ResNet18 against torchvision's in float64: forward, running statistics, gradients, predictions.
#include <cmath>

#include "dp/data_parallel.h"
#include "dp/models.h"
#include "golden/resnet_golden.h"
#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;
using Stem = models::Resnet18Options::Stem;

// Matches CASES of golden_resnet.py.
struct Case {
  std::string name;
  models::Resnet18Options options;
  std::int64_t rows;
  std::uint64_t number;
};
const Case kCifar{"cifar", {.classes = 10, .input = {3, 32, 32}}, 8, 0};
const Case kSmooth{"smooth", {.classes = 10, .input = {3, 16, 16}, .relu = false}, 7, 0};
const Case kImagenet{"imagenet", {.classes = 20, .input = {3, 64, 64}}, 4, 1};
const Case kKinkless{"kinkless", {.classes = 10, .input = {3, 8, 8}}, 8, 75};

const GoldenFile& golden() {
  static const GoldenFile file("resnet18.safetensors");
  return file;
}

struct Errors {
  double logits = 0, predictions = 0;
  Worst running, gradient;
};

// Error of running statistics relative to their change.
double running_error(const std::string& name, const Tensor& before, const Tensor& after) {
  REQUIRE(golden().at(name).shape() == after.shape());
  const std::vector<double> expected = golden().values(name).values;
  double off = 0, moved = 0;
  for (std::int64_t i = 0; i < after.numel(); ++i) {
    const double value = expected[static_cast<std::size_t>(i)];
    off += std::pow(value_at(after, i) - value, 2);
    moved += std::pow(value_at(before, i) - value, 2);
  }
  return std::sqrt(off / moved);
}

// One step and one prediction. Several replicas use sync batch norm.
Errors errors_of(const Case& which, DataParallelOptions options) {
  options.batch_norm = BatchNormMode::sync;
  const Model model = models::resnet18(which.options);
  DataParallel net(model, options);
  const auto before = resnet_state(net.weights());
  net.set_weights(before);
  const Batch batch = resnet_batch(model, which.rows, which.number);
  Errors errors;
  const Tensor& logits = net.forward(batch.images);
  errors.logits = golden_error(golden(), which.name + ".logits", logits);
  const Loss loss = cross_entropy(logits, batch.labels);
  CHECK(loss.value == Approx(golden().values(which.name + ".loss").values[0]).epsilon(1e-5));
  net.backward(loss.grad);
  for (const auto& [name, gradient] : net.gradients())
    errors.gradient.take(golden_error(golden(), which.name + ".gradient." + name, gradient), name);
  const auto after = net.weights();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::string name = which.name + ".running." + after[i].first;
    if (golden().has(name)) errors.running.take(running_error(name, before[i].second, after[i].second), name);
  }
  errors.predictions = golden_error(golden(), which.name + ".predictions", net.predict(batch.images));
  return errors;
}

void check_errors(const Errors& errors, double gradient) {
  INFO("running statistics: " << errors.running.name << ", gradients: " << errors.gradient.name);
  CHECK(errors.logits <= 1e-5);
  CHECK(errors.running.error <= 1e-5);
  CHECK(errors.predictions <= 1e-5);
  CHECK(errors.gradient.error <= gradient);
}

// One activation within rounding of a kink changes a gradient by 1e-3 to 1e-2, also in PyTorch's float32.
constexpr double kWithKinks = 2e-2;

}  // namespace

TEST_CASE("ResNet18 with CIFAR's stem equals torchvision's") {
  check_errors(errors_of(kCifar, on_cpus(1)), kWithKinks);
}

TEST_CASE("ResNet18 with ImageNet's stem equals torchvision's") {
  check_errors(errors_of(kImagenet, on_cpus(1)), kWithKinks);
}

TEST_CASE("every gradient of ResNet18 without ReLUs equals torchvision's") {
  check_errors(errors_of(kSmooth, on_cpus(1)), 1e-5);
}

TEST_CASE("every gradient of ResNet18 without ReLUs, synchronised over replicas, equals torchvision's") {
  for (const int replicas : {2, 3})
    check_errors(errors_of(kSmooth, on_cpus(replicas)), 1e-5);  // shards of 4, 3 and of 3, 2, 2 rows
}

TEST_CASE("every gradient of ResNet18 with ReLUs equals torchvision's away from kinks") {
  CHECK(golden().values("kinkless.margin").values[0] > 2e-5);
  check_errors(errors_of(kKinkless, on_cpus(1)), 1e-5);
}

TEST_CASE("ResNet18 in float64 equals torchvision's in float64") {
  const Errors errors = errors_of(kKinkless, on_reference());
  INFO("gradients: " << errors.gradient.name);
  CHECK(errors.logits <= 1e-12);
  CHECK(errors.predictions <= 1e-12);
  CHECK(errors.gradient.error <= 1e-12);
}

TEST_CASE("a fused step of ResNet18 has torchvision's gradients, also synchronised over two replicas") {
  for (const int replicas : {1, 2}) {
    const Model model = models::resnet18(kKinkless.options);
    DataParallelOptions options = on_cpus(replicas);
    options.batch_norm = BatchNormMode::sync;
    DataParallel net(model, options);
    net.set_weights(resnet_state(net.weights()));
    net.train_step(resnet_batch(model, kKinkless.rows, kKinkless.number), Sgd{.lr = 0.1f});
    CHECK(net.take_stats().loss() == Approx(golden().values("kinkless.loss").values[0]).epsilon(1e-5));
    Worst worst;
    for (const auto& [name, gradient] : net.gradients())
      worst.take(golden_error(golden(), "kinkless.gradient." + name, gradient), name);
    INFO(worst.name);
    CHECK(worst.error <= 1e-5);
  }
}

TEST_CASE("num_batches_tracked is a scalar int64 that counts training steps, as in torchvision's state") {
  DataParallel net(models::resnet18(kKinkless.options), on_cpus(1));
  net.set_weights(resnet_state(net.weights()));
  const Batch batch = resnet_batch(net.model(), 2, 0);
  net.predict(batch.images);
  net.forward(batch.images);
  int counters = 0;
  for (const auto& [name, tensor] : net.weights()) {
    if (!name.ends_with("num_batches_tracked")) continue;
    ++counters;
    INFO(name);
    const Tensor& expected = golden().at("cifar.running." + name);
    CHECK(tensor.dtype() == DType::i64);
    CHECK(tensor.shape() == Shape{});
    CHECK(expected.dtype() == DType::i64);
    CHECK(expected.shape() == Shape{});
    CHECK(*tensor.data<std::int64_t>() == *expected.data<std::int64_t>());
  }
  CHECK(counters == 20);
}

TEST_CASE("ResNet18 starts from torchvision's distributions") {
  DataParallel net(models::resnet18({.classes = 1000, .stem = Stem::imagenet}), on_cpus(1));
  const auto weights = net.weights();
  int compared = 0;
  for (const auto& [name, tensor] : weights) {
    if (!golden().has("initial." + name)) continue;
    ++compared;
    INFO(name);
    double mean = 0, square = 0;
    const auto count = static_cast<double>(tensor.numel());
    for (const float value : tensor.span<float>()) mean += value / count;
    for (const float value : tensor.span<float>()) square += std::pow(value - mean, 2) / count;
    const std::vector<double> expected = golden().values("initial." + name).values;
    CHECK(std::sqrt(square) == Approx(expected[1]).epsilon(5 / std::sqrt(count)).margin(1e-12));
    CHECK(mean == Approx(expected[0]).epsilon(0).margin(6 * expected[1] / std::sqrt(count)));
  }
  CHECK(compared == 62);
}
