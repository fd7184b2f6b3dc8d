// Compares the networks that are not ResNets with torchvision's in float64: forward, running statistics, gradients,
// predictions.
#include "dp/models.h"
#include "golden/resnet_cases.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

struct Errors {
  double in_float64, on_cpus;
  double others_on_cpus = 1e-5;  // of logits, running statistics and predictions
};

// Four images of size x size, twenty classes. `gradient`: the largest errors of gradients.
void check_network(Model (*make)(const models::ImagenetOptions&), const Errors& gradient, int parameters,
                   std::int64_t size = 64) {
  const ResnetCase whole{"imagenet", make({.classes = 20, .input = {3, size, size}}), 4, 1};
  const GoldenFile golden(whole.model.name() + ".safetensors");
  check_resnet_errors(resnet_errors(golden, whole, on_reference()), gradient.in_float64, 1e-12);
  for (const int replicas : {1, 2})
    check_resnet_errors(resnet_errors(golden, whole, on_cpus(replicas)), gradient.on_cpus, gradient.others_on_cpus);
  check_fused_resnet(golden, whole, 2, 1, gradient.on_cpus);
  check_resnet_start(golden,
                     make(size == 64 ? models::ImagenetOptions{} : models::ImagenetOptions{.input = {3, size, size}}),
                     parameters);
}

}  // namespace

// In float32 an activation within rounding of a kink changes a gradient by 1e-3 to 1e-2. PyTorch's own float32 differs
// from its float64 by 4e-3, 1e-5 and 2.8e-2. In float64 PyTorch's hard-sigmoid has the derivative 1.0f / 6.0f, which
// limits MobileNetV3. Some gradients of DenseNet are sums that nearly cancel, which magnifies rounding errors.
TEST_CASE("small MobileNetV3 equals torchvision's") {
  check_network(models::mobilenet_v3_small, {.in_float64 = 2e-7, .on_cpus = 2e-2}, 142);
}
TEST_CASE("large MobileNetV3 equals torchvision's") {
  check_network(models::mobilenet_v3_large, {.in_float64 = 2e-7, .on_cpus = 2e-2}, 174);
}
TEST_CASE("EfficientNet-B0 equals torchvision's") {
  check_network(models::efficientnet_b0, {.in_float64 = 1e-10, .on_cpus = 1e-4}, 213);
}
TEST_CASE("RegNetY-400MF equals torchvision's") {
  check_network(models::regnet_y_400mf, {.in_float64 = 1e-10, .on_cpus = 1e-4}, 225);
}
TEST_CASE("ShuffleNetV2 equals torchvision's") {
  check_network(models::shufflenet_v2_x1_0, {.in_float64 = 1e-10, .on_cpus = 1e-4}, 170);
}
TEST_CASE("small ConvNeXt equals torchvision's") {
  check_network(models::convnext_tiny, {.in_float64 = 1e-10, .on_cpus = 1e-4}, 182);
}
// The largest error is that of a variance of 16 values behind 57 convolutions. PyTorch's own float32: 4e-6.
TEST_CASE("GoogLeNet equals torchvision's") {
  check_network(models::googlenet, {.in_float64 = 1e-10, .on_cpus = 1e-4, .others_on_cpus = 3e-5}, 173);
}
// With 64 features in place of 4096 in its linear layers. With AVX2 one activation is within rounding of a kink: 6e-3.
TEST_CASE("VGG11 equals torchvision's") {
  const auto narrow = [](const models::ImagenetOptions& options) {
    return models::vgg11_bn({.classes = options.classes, .input = options.input, .hidden = 64});
  };
  check_network(narrow, {.in_float64 = 1e-10, .on_cpus = 2e-2}, 38);
}
TEST_CASE("airbench94's network equals that in PyTorch") {
  const auto make = [](const models::ImagenetOptions& options) {
    return models::cifar_speed({.classes = options.classes, .input = options.input});
  };
  check_network(make, {.in_float64 = 1e-10, .on_cpus = 1e-4}, 21, 32);
}
TEST_CASE("DenseNet121 equals torchvision's") {
  check_network(models::densenet121, {.in_float64 = 1e-8, .on_cpus = 6e-2}, 364);
}
