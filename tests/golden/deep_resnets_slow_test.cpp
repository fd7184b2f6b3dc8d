#include "golden/deep_resnets.h"

using namespace dp::test;

TEST_CASE("ResNet101 and ResNet152 equal torchvision's") {
  const DeepResnet net = GENERATE(kResnet101, kResnet152);
  INFO(net.name);
  check_smooth(net);
  check_imagenet(net);
  check_kinkless(net);
  check_fused_resnet(net.golden(), net.kinkless_case(), 2);
  check_resnet_start(net.golden(), net.make, net.parameters);
}

TEST_CASE("ResNet50 in float64 equals torchvision's in float64") {
  check_resnet_errors(resnet_errors(kResnet50.golden(), kResnet50.kinkless_case(), on_reference()), 1e-12, 1e-12);
}
