// Twenty training steps of the networks of golden_models.py against PyTorch's in float64.
#include <algorithm>
#include <cmath>

#include "dp/data_parallel.h"
#include "dp/models.h"
#include "golden/golden_file.h"
#include "golden/resnet_golden.h"
#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

// As in golden_models.py.
constexpr int kSteps = 20;
constexpr std::int64_t kRows = 8;
constexpr std::uint64_t kBatches = 4, kFirst = 1000;
const Sgd kSgd{.lr = 1e-4f, .momentum = 0.9f, .weight_decay = 0.1f};

models::ResnetOptions resnet(std::int64_t width) {
  return {.classes = 10, .input = {3, 32, 32}, .stem = models::ResnetOptions::Stem::imagenet, .width = width};
}
// The networks that have no narrow form.
const Model kMobilenet = models::mobilenet_v2({.classes = 10, .input = {3, 32, 32}});
const Model kSmallV3 = models::mobilenet_v3_small({.classes = 10, .input = {3, 32, 32}});
const Model kLargeV3 = models::mobilenet_v3_large({.classes = 10, .input = {3, 32, 32}});
const Model kShufflenet = models::shufflenet_v2_x1_0({.classes = 10, .input = {3, 32, 32}});
const Model kConvnext = models::convnext_tiny({.classes = 10, .input = {3, 32, 32}});
const Model kRegnet = models::regnet_y_400mf({.classes = 10, .input = {3, 32, 32}});
const Model kEfficientnet = models::efficientnet_b0({.classes = 10, .input = {3, 32, 32}});
const Model kGooglenet = models::googlenet({.classes = 10, .input = {3, 32, 32}});
const Model kVgg = models::vgg11_bn({.classes = 10, .input = {3, 32, 32}, .hidden = 64});
const Model kCifarSpeed = models::cifar_speed();
const Model kDensenet = models::densenet121({.classes = 10, .input = {3, 32, 32}});

// Trains from the initial state of golden_resnet.py, without dropout, and compares the loss of each step.
void train(DataParallel& net, const std::vector<double>& losses, int steps, double tolerance) {
  net.set_weights(resnet_state(net.model().name(), net.weights()));
  Worst worst;
  for (int step = 0; step < steps; ++step) {
    net.train_step(resnet_batch(net.model(), kRows, kFirst + static_cast<std::uint64_t>(step) % kBatches), kSgd);
    const double expected = losses[static_cast<std::size_t>(step)];
    worst.take(std::abs(net.take_stats().loss() / expected - 1), "step " + std::to_string(step));
  }
  INFO(net.model().name() << ", loss of " << worst.name);
  CHECK(worst.error <= tolerance);
}

// `tolerance`: of the loss, and of the change of each tensor.
void check_in_float64(const Model& small, double tolerance = 1e-8) {
  const GoldenFile golden(small.name() + ".safetensors");
  DataParallelOptions options = on_reference();
  options.dropout = false;
  DataParallel net(small, options);
  train(net, golden.values("small.loss").values, kSteps, tolerance);
  Worst worst;  // relative to how far the tensor moved
  for (const auto& [name, tensor] : net.weights())
    if (tensor.dtype() == DType::i64)
      CHECK(*tensor.data<std::int64_t>() == kResnetTracked + kSteps);
    else
      worst.take(golden_error(golden, "small.end." + name, tensor), name);
  INFO(worst.name);
  CHECK(worst.error <= tolerance);
}

// The first ten steps: later ones amplify rounding errors. The tolerance is five times the largest error of PyTorch's
// own float32 in these steps.
void check_on_cpus(const Model& model) {
  constexpr int kFew = 10;
  const GoldenFile golden(model.name() + ".safetensors");
  const std::vector<double> own = golden.values("steps.float32_error").values;
  DataParallelOptions options = on_cpus(1);
  options.dropout = false;
  DataParallel net(model, options);
  train(net, golden.values("steps.loss").values, kFew, 5 * *std::max_element(own.begin(), own.begin() + kFew));
}

}  // namespace

TEST_CASE("twenty steps of MobileNetV2 in float64 equal PyTorch's", "[naive]") { check_in_float64(kMobilenet); }
TEST_CASE("twenty steps of MobileNetV3 in float64 equal PyTorch's", "[naive]") {
  constexpr double kHardSigmoid = 2e-7;  // PyTorch's derivative is 1.0f / 6.0f
  check_in_float64(kSmallV3, kHardSigmoid);
  check_in_float64(kLargeV3, kHardSigmoid);
}
TEST_CASE("twenty steps of EfficientNet-B0 in float64 equal PyTorch's", "[naive]") { check_in_float64(kEfficientnet); }
TEST_CASE("twenty steps of RegNetY-400MF in float64 equal PyTorch's", "[naive]") { check_in_float64(kRegnet); }
TEST_CASE("twenty steps of ShuffleNetV2 in float64 equal PyTorch's", "[naive]") { check_in_float64(kShufflenet); }
TEST_CASE("twenty steps of ConvNeXt in float64 equal PyTorch's", "[naive]") { check_in_float64(kConvnext); }
TEST_CASE("twenty steps of GoogLeNet in float64 equal PyTorch's", "[naive]") { check_in_float64(kGooglenet); }
TEST_CASE("twenty steps of VGG11 in float64 equal PyTorch's", "[naive]") { check_in_float64(kVgg); }
TEST_CASE("twenty steps of airbench94's network in float64 equal PyTorch's", "[naive]") {
  check_in_float64(kCifarSpeed);
}
TEST_CASE("twenty steps of DenseNet121 in float64 equal PyTorch's", "[naive]") { check_in_float64(kDensenet); }
TEST_CASE("twenty steps of a narrow ResNeXt50 in float64 equal PyTorch's", "[naive]") {
  check_in_float64(models::resnext50_32x4d(resnet(16)));
}
TEST_CASE("twenty steps of a narrow Wide ResNet50 in float64 equal PyTorch's", "[naive]") {
  check_in_float64(models::wide_resnet50_2(resnet(16)));
}

TEST_CASE("the first steps of MobileNetV2 on CPUs equal PyTorch's") { check_on_cpus(kMobilenet); }
TEST_CASE("the first steps of MobileNetV3 on CPUs equal PyTorch's") {
  check_on_cpus(kSmallV3);
  check_on_cpus(kLargeV3);
}
TEST_CASE("the first steps of EfficientNet-B0 on CPUs equal PyTorch's") { check_on_cpus(kEfficientnet); }
TEST_CASE("the first steps of RegNetY-400MF on CPUs equal PyTorch's") { check_on_cpus(kRegnet); }
TEST_CASE("the first steps of ShuffleNetV2 on CPUs equal PyTorch's") { check_on_cpus(kShufflenet); }
TEST_CASE("the first steps of ConvNeXt on CPUs equal PyTorch's") { check_on_cpus(kConvnext); }
TEST_CASE("the first steps of GoogLeNet on CPUs equal PyTorch's") { check_on_cpus(kGooglenet); }
TEST_CASE("the first steps of VGG11 on CPUs equal PyTorch's") { check_on_cpus(kVgg); }
TEST_CASE("the first steps of airbench94's network on CPUs equal PyTorch's") { check_on_cpus(kCifarSpeed); }
TEST_CASE("the first steps of DenseNet121 on CPUs equal PyTorch's") { check_on_cpus(kDensenet); }
TEST_CASE("the first steps of ResNeXt50 on CPUs equal PyTorch's") {
  check_on_cpus(models::resnext50_32x4d(resnet(64)));
}
TEST_CASE("the first steps of Wide ResNet50 on CPUs equal PyTorch's") {
  check_on_cpus(models::wide_resnet50_2(resnet(64)));
}
