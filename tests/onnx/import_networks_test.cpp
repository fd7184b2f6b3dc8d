// torchvision's networks through ONNX: PyTorch's exporters, twenty training steps against PyTorch's, and onnxruntime.
// Skipped if Python has no torchvision or onnx.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "dp/onnx.h"
#include "golden/golden_file.h"
#include "golden/resnet_golden.h"
#include "onnx/onnx_runtime.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr double kTolerance = 1e-5;  // of the largest output

// As in golden_models.py.
constexpr int kSteps = 20;
constexpr std::int64_t kRows = 8;
constexpr std::uint64_t kBatches = 4, kFirst = 1000;
const Sgd kSgd{.lr = 1e-4f, .momentum = 0.9f, .weight_decay = 0.1f};

int python(const std::string& arguments) {
  const std::string program = DP_PYTHON;
  if (::access(program.c_str(), X_OK) != 0) return kNoOnnxruntime;
  const int status = std::system(("'" + program + "' -B '" DP_ONNX_TESTS "/import_networks.py' " + arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const Tensor& find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

// The largest error of the loss of each step, relative to PyTorch's in float64.
double train(DataParallel& net, const std::vector<double>& losses, int steps) {
  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    net.train_step(resnet_batch(net.model(), kRows, kFirst + static_cast<std::uint64_t>(step) % kBatches), kSgd);
    const double expected = losses[static_cast<std::size_t>(step)];
    worst = larger_error(worst, std::abs(net.take_stats().loss() / expected - 1));
  }
  return worst;
}

// Whether PyTorch wrote the files of a network into the folder; Python lacks torchvision or onnx otherwise.
bool make_files(const std::string& network, const std::string& exporter, const TemporaryFolder& folder) {
  const int status = python("network " + network + " " + exporter + " '" + folder.path() + "'");
  if (status == kNoOnnxruntime) return false;
  REQUIRE(status == 0);
  return true;
}
constexpr const char* kNoExporter = "no Python with torchvision and onnx";

// The evaluation form gives PyTorch's logits.
void check_logits(const std::string& network, const std::string& exporter, const TemporaryFolder& folder) {
  const OnnxImport imported = read_onnx(folder / "eval.onnx");
  const NamedTensors expected = read_safetensors(folder / "eval.safetensors");
  DataParallel net(imported.network.model, on_cpus(1));
  net.set_weights(imported.network.weights);
  const double error = output_error(net.predict(find(expected, "images")), find(expected, "logits"));
  std::printf("%-20s %-12s logits %.1e\n", network.c_str(), exporter.c_str(), error);
  CHECK(error <= kTolerance);
}

// Sets what ONNX does not have: the number of batches of each batch normalisation.
void check_state(const std::string& network, const OnnxImport& imported, DataParallel& net) {
  CHECK(imported.notices.empty());
  const bool residual = network == "resnet18";  // its golden state magnifies rounding errors in ten steps
  const NamedTensors state = resnet_state(residual ? "resnet34" : network, net.weights());
  for (const auto& [name, tensor] : imported.network.weights) {
    INFO(name);
    if (tensor.dtype() == DType::f32) CHECK(relative_error(tensor, find(state, name)) == 0);
  }
  net.set_weights(state);
}

// PyTorch's twenty steps: the losses in float64, and the errors of its float32. The golden files have none of ResNet18,
// so import_networks.py runs them.
struct Steps {
  std::vector<double> losses, errors;
};
Steps steps_of(const std::string& network, const TemporaryFolder& folder) {
  const auto read = [&](const auto& values) { return Steps{values("steps.loss"), values("steps.float32_error")}; };
  if (network != "resnet18") {
    const GoldenFile golden(network + ".safetensors");
    return read([&](const char* name) { return golden.values(name).values; });
  }
  const NamedTensors made = read_safetensors(folder / "eval.safetensors");
  return read([&](const char* name) {
    const std::span<const double> values = find(made, name).span<double>();
    return std::vector<double>(values.begin(), values.end());
  });
}

// Ten steps of the training form on a CPU within the bounds of network_steps_test.cpp: later ones amplify rounding
// errors, and check_in_float64() takes twenty. Then to onnxruntime.
void check_training(const std::string& network, const std::string& exporter) {
  INFO(network << " by " << exporter);
  const TemporaryFolder folder;
  if (!make_files(network, exporter, folder)) DP_SKIP(kNoExporter);
  check_logits(network, exporter, folder);
  const OnnxImport imported = read_onnx(folder / "net.onnx");
  DataParallelOptions options = on_cpus(1);
  options.dropout = false;
  DataParallel net(imported.network.model, options);
  check_state(network, imported, net);
  constexpr int kFew = 10;
  const auto [losses, own] = steps_of(network, folder);
  const double bound = 5 * *std::max_element(own.begin(), own.begin() + kFew);
  const double error = train(net, losses, kFew);
  std::printf("%-20s %-12s loss of 10 steps in float32 %.1e, at most %.1e\n", network.c_str(), exporter.c_str(), error,
              bound);
  CHECK(error <= bound);
  const TemporaryFolder out;
  const Batch batch = resnet_batch(net.model(), 3, 9);
  write_onnx(out / "net.onnx", {net.model(), net.weights()}, {.dynamic_batch = true});
  write_safetensors(out / "net.images", {{"images", batch.images}});
  REQUIRE(run_onnx(out) == 0);
  const double written = output_error(read_safetensors(out / "net.outputs").at(0).second, net.predict(batch.images));
  std::printf("%-20s %-12s onnxruntime %.1e\n", network.c_str(), exporter.c_str(), written);
  CHECK(written <= kTolerance);
}

// Twenty steps in float64 equal PyTorch's: the losses, and the weights at the end of networks with golden files.
void check_in_float64(const std::string& network, const std::string& exporter, double tolerance = 1e-8) {
  INFO(network << " by " << exporter);
  const TemporaryFolder folder;
  if (!make_files(network, exporter, folder)) DP_SKIP(kNoExporter);
  const OnnxImport imported = read_onnx(folder / "net.onnx");
  DataParallelOptions options = on_reference();
  options.dropout = false;
  DataParallel net(imported.network.model, options);
  check_state(network, imported, net);
  const double error = train(net, steps_of(network, folder).losses, kSteps);
  Worst worst;  // relative to how far the tensor moved
  if (network != "resnet18") {
    const GoldenFile golden(network + ".safetensors");
    for (const auto& [name, tensor] : net.weights())
      if (tensor.dtype() != DType::i64) worst.take(golden_error(golden, "small.end." + name, tensor), name);
  }
  std::printf("%-20s %-12s 20 steps in float64: loss %.1e, weights %.1e\n", network.c_str(), exporter.c_str(), error,
              worst.error);
  INFO(worst.name);
  CHECK(error <= tolerance);
  CHECK(worst.error <= tolerance);
}

}  // namespace

TEST_CASE("ResNet18 comes from PyTorch as ONNX, trains as PyTorch does, and goes to onnxruntime", "[networks]") {
  check_training("resnet18", GENERATE("torchscript", "dynamo"));
}
TEST_CASE("MobileNetV2 comes from PyTorch as ONNX, trains as PyTorch does, and goes to onnxruntime", "[networks]") {
  check_training("mobilenet_v2", GENERATE("torchscript", "dynamo"));
}
TEST_CASE("EfficientNet-B0 comes from PyTorch as ONNX, trains as PyTorch does, and goes to onnxruntime", "[networks]") {
  check_training("efficientnet_b0", GENERATE("torchscript", "dynamo"));
}
TEST_CASE("ConvNeXt comes from PyTorch as ONNX, trains as PyTorch does, and goes to onnxruntime", "[networks]") {
  check_training("convnext_tiny", GENERATE("torchscript", "dynamo"));
}
TEST_CASE("other networks come from PyTorch as ONNX, train as PyTorch does, and go to onnxruntime", "[networks]") {
  check_training(GENERATE("mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x1_0", "densenet121", "googlenet"),
                 GENERATE("torchscript", "dynamo"));
}
TEST_CASE("VGG11 comes from PyTorch as ONNX", "[networks]") {
  const std::string exporter = GENERATE("torchscript", "dynamo");
  const TemporaryFolder folder;
  if (!make_files("vgg11_bn", exporter, folder)) DP_SKIP(kNoExporter);
  check_logits("vgg11_bn", exporter, folder);
}
TEST_CASE("twenty steps in float64 of ResNet18 that came as ONNX equal PyTorch's", "[naive]") {
  check_in_float64("resnet18", "torchscript");
}
TEST_CASE("twenty steps in float64 of MobileNetV2 that came as ONNX equal PyTorch's", "[naive]") {
  check_in_float64("mobilenet_v2", "torchscript");
}
TEST_CASE("twenty steps in float64 of EfficientNet-B0 that came as ONNX equal PyTorch's", "[naive]") {
  check_in_float64("efficientnet_b0", "torchscript");
}
TEST_CASE("twenty steps in float64 of ConvNeXt that came as ONNX equal PyTorch's", "[naive]") {
  check_in_float64("convnext_tiny", "torchscript");
}
TEST_CASE("twenty steps in float64 of MobileNetV3 that came as ONNX equal PyTorch's", "[naive]") {
  check_in_float64("mobilenet_v3_small", "torchscript", 2e-7);  // PyTorch's derivative of hard-sigmoid is 1.0f / 6.0f
}
TEST_CASE("twenty steps in float64 of ShuffleNetV2 that came as ONNX equal PyTorch's", "[naive]") {
  check_in_float64("shufflenet_v2_x1_0", "torchscript");
}
