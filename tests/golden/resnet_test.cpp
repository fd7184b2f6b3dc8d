// The engine's ResNet18 against torchvision's in float64: forward, running statistics, gradients, predictions.
#include "dp/data_parallel.h"
#include "dp/models.h"
#include "golden/resnet_cases.h"
#include "golden/resnet_golden.h"
#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

const ResnetCase kCifar{"cifar", models::resnet18({.classes = 10, .input = {3, 32, 32}}), 8, 0};
const ResnetCase kSmooth{"smooth", models::resnet18({.classes = 10, .input = {3, 16, 16}, .relu = false}), 7, 0};
const ResnetCase kImagenet{"imagenet", models::resnet18({.classes = 20, .input = {3, 64, 64}}), 4, 1};
const ResnetCase kKinkless{"kinkless", models::resnet18({.classes = 10, .input = {3, 8, 8}}), 8, 75};

const GoldenFile& golden() {
  static const GoldenFile file("resnet18.safetensors");
  return file;
}

// Direct convolutions have errors of up to 8e-6, those of Winograd more: with AVX2 up to 4.2e-5 in gradients and 1.1e-5
// in logits, with AVX-512 up to 2e-5 and below 1e-5.
constexpr double kExact = 1e-5, kDefault = 5e-5, kDefaultOthers = 3e-5;

DataParallelOptions exact(int replicas) {
  DataParallelOptions options = on_cpus(replicas);
  options.exact_convolutions = true;
  return options;
}

// One activation within rounding of a kink changes a gradient by 1e-3 to 1e-2, also in PyTorch's float32.
constexpr double kWithKinks = 2e-2;

}  // namespace

TEST_CASE("ResNet18 with CIFAR's stem equals torchvision's") {
  check_resnet_errors(resnet_errors(golden(), kCifar, on_cpus(1)), kWithKinks);
}

TEST_CASE("ResNet18 with ImageNet's stem equals torchvision's") {
  check_resnet_errors(resnet_errors(golden(), kImagenet, on_cpus(1)), kWithKinks);
}

TEST_CASE("every gradient of ResNet18 without ReLUs equals torchvision's") {
  check_resnet_errors(resnet_errors(golden(), kSmooth, exact(1)), kExact);
  check_resnet_errors(resnet_errors(golden(), kSmooth, on_cpus(1)), kDefault, kDefaultOthers);
}

TEST_CASE("every gradient of ResNet18 without ReLUs, synchronised over replicas, equals torchvision's") {
  for (const int replicas : {2, 3}) {  // shards of 4, 3 and of 3, 2, 2 rows
    check_resnet_errors(resnet_errors(golden(), kSmooth, exact(replicas)), kExact);
    check_resnet_errors(resnet_errors(golden(), kSmooth, on_cpus(replicas)), kDefault, kDefaultOthers);
  }
}

TEST_CASE("every gradient of ResNet18 with ReLUs equals torchvision's away from kinks") {
  CHECK(golden().values("kinkless.margin").values[0] > 2e-5);
  check_resnet_errors(resnet_errors(golden(), kKinkless, exact(1)), kExact);
  check_resnet_errors(resnet_errors(golden(), kKinkless, on_cpus(1)), kDefault, kDefaultOthers);
}

TEST_CASE("ResNet18 in float64 equals torchvision's in float64") {
  check_resnet_errors(resnet_errors(golden(), kKinkless, on_reference()), 1e-12, 1e-12);
}

TEST_CASE("a fused step of ResNet18 has torchvision's gradients, also synchronised over two replicas") {
  for (const int replicas : {1, 2}) check_fused_resnet(golden(), kKinkless, replicas);
}

TEST_CASE("num_batches_tracked is a scalar int64 that counts training steps, as in torchvision's state") {
  DataParallel net(kKinkless.model, on_cpus(1));
  net.set_weights(resnet_state("resnet18", net.weights()));
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
  check_resnet_start(golden(), models::resnet18({.classes = 1000, .stem = models::ResnetOptions::Stem::imagenet}), 62);
}
