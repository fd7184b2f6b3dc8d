// ResNets of 34 to 152 layers against torchvision's in float64: forward, gradients, predictions, initial weights.
#include "golden/resnet_cases.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

void check_network(const std::string& name, MakeResnet make, std::uint64_t kinkless, int parameters) {
  const GoldenFile golden(name + ".safetensors");
  INFO(name);
  check_resnet_start(golden, make, parameters);
  const ResnetCase smooth{"smooth", make, {.classes = 10, .input = {3, 16, 16}, .relu = false}, 7, 0};
  check_resnet_errors(resnet_errors(golden, smooth, on_cpus(1)), 1e-5);
  // One activation within rounding of a kink changes a gradient by 1e-3 to 1e-2, also in PyTorch's float32.
  const ResnetCase imagenet{"imagenet", make, {.classes = 20, .input = {3, 64, 64}}, 4, 1};
  check_resnet_errors(resnet_errors(golden, imagenet, on_cpus(1)), 2e-2);
  const ResnetCase without_kinks{"kinkless", make, {.classes = 10, .input = {3, 8, 8}}, 16, kinkless};
  CHECK(golden.values("kinkless.margin").values[0] > 8e-6);
  check_resnet_errors(resnet_errors(golden, without_kinks, on_cpus(1)), 1e-5);
  check_fused_resnet(golden, without_kinks, 2);
}

}  // namespace

TEST_CASE("ResNet34 equals torchvision's") { check_network("resnet34", models::resnet34, 18, 110); }
TEST_CASE("ResNet50 equals torchvision's") { check_network("resnet50", models::resnet50, 39, 161); }
TEST_CASE("ResNet101 equals torchvision's") { check_network("resnet101", models::resnet101, 36, 314); }
TEST_CASE("ResNet152 equals torchvision's") { check_network("resnet152", models::resnet152, 5, 467); }

TEST_CASE("ResNet50 in float64 equals torchvision's in float64") {
  const GoldenFile golden("resnet50.safetensors");
  const ResnetCase kinkless{"kinkless", models::resnet50, {.classes = 10, .input = {3, 8, 8}}, 16, 39};
  check_resnet_errors(resnet_errors(golden, kinkless, on_reference()), 1e-12, 1e-12);
}
