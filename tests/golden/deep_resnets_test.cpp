#include "golden/deep_resnets.h"

using namespace dp::test;

TEST_CASE("every gradient of ResNet34 without ReLUs equals torchvision's") { check_smooth(kResnet34); }
TEST_CASE("every gradient of ResNet50 without ReLUs equals torchvision's") { check_smooth(kResnet50); }

TEST_CASE("ResNet34 with ImageNet's stem equals torchvision's") { check_imagenet(kResnet34); }
TEST_CASE("ResNet50 with ImageNet's stem equals torchvision's") { check_imagenet(kResnet50); }

TEST_CASE("every gradient of ResNet34 with ReLUs equals torchvision's away from kinks") { check_kinkless(kResnet34); }
TEST_CASE("every gradient of ResNet50 with ReLUs equals torchvision's away from kinks") { check_kinkless(kResnet50); }

TEST_CASE("a fused step of ResNet50 has torchvision's gradients, synchronised over two replicas") {
  check_fused_resnet(kResnet50.golden(), kResnet50.kinkless_case(), 2);
}

TEST_CASE("two stages of ResNet50 have torchvision's gradients, synchronised over two replicas") {
  check_fused_resnet(kResnet50.golden(), kResnet50.kinkless_case(), 2, 2);
}

TEST_CASE("ResNet34 and ResNet50 start from torchvision's distributions") {
  for (const DeepResnet& net : {kResnet34, kResnet50}) check_resnet_start(net.golden(), net.make, net.parameters);
}
