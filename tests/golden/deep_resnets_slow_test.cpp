#include "golden/deep_resnets.h"

using namespace dp::test;

TEST_CASE("ResNet101 and ResNet152 equal torchvision's") {
  const DeepResnet net = GENERATE(kResnet101, kResnet152);
  INFO(net.name);
  check_smooth(net);
  check_imagenet(net);
  check_kinkless(net);
  check_fused_resnet(net.golden(), net.kinkless_case(), 2);
  check_start(net);
}

TEST_CASE("ResNet50 and its variants in float64 equal torchvision's in float64") {
  const DeepResnet net = GENERATE(kResnet50, kResnext50, kWideResnet50);
  INFO(net.name);
  check_resnet_errors(resnet_errors(net.golden(), net.kinkless_case(), on_reference()), 1e-12, 1e-12);
}
