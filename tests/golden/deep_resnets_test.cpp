#include "golden/deep_resnets.h"

using namespace dp::test;

TEST_CASE("every gradient of ResNet34 without ReLUs equals torchvision's") { check_smooth(kResnet34); }
TEST_CASE("every gradient of ResNet50 without ReLUs equals torchvision's") { check_smooth(kResnet50); }

TEST_CASE("ResNet34 with ImageNet's stem equals torchvision's") { check_imagenet(kResnet34); }
TEST_CASE("ResNet50 with ImageNet's stem equals torchvision's") { check_imagenet(kResnet50); }

TEST_CASE("ResNeXt50 equals torchvision's") { check_imagenet(kResnext50); }
TEST_CASE("Wide ResNet50 equals torchvision's") { check_imagenet(kWideResnet50); }

TEST_CASE("every gradient of ResNet34 with ReLUs equals torchvision's away from kinks") { check_kinkless(kResnet34); }
TEST_CASE("every gradient of ResNet50 with ReLUs equals torchvision's away from kinks") { check_kinkless(kResnet50); }

TEST_CASE("every gradient of ResNeXt50 equals torchvision's away from kinks") { check_kinkless(kResnext50); }
TEST_CASE("every gradient of Wide ResNet50 equals torchvision's away from kinks") { check_kinkless(kWideResnet50); }

TEST_CASE("a fused step of ResNet50 has torchvision's gradients, synchronised over two replicas") {
  check_fused_resnet(kResnet50.golden(), kResnet50.kinkless_case(), 2);
}

TEST_CASE("a fused step of ResNeXt50 has torchvision's gradients, synchronised over two replicas") {
  check_fused_resnet(kResnext50.golden(), kResnext50.kinkless_case(), 2);
}

TEST_CASE("two stages of ResNet50 have torchvision's gradients, synchronised over two replicas") {
  check_fused_resnet(kResnet50.golden(), kResnet50.kinkless_case(), 2, 2);
}

TEST_CASE("ResNet34, ResNet50 and its variants start from torchvision's distributions") {
  for (const DeepResnet& net : {kResnet34, kResnet50, kResnext50, kWideResnet50}) check_start(net);
}
