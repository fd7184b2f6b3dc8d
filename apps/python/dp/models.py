"""The built-in networks. `make(name, input, classes)` makes one of `names()`."""

from ._dp import (
    cifar_speed,
    convnext_tiny,
    densenet121,
    efficientnet_b0,
    googlenet,
    mlp,
    mnist_convnet,
    mobilenet_v2,
    mobilenet_v3_large,
    mobilenet_v3_small,
    regnet_y_400mf,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnext50_32x4d,
    shufflenet_v2_x1_0,
    vgg11_bn,
    vgg13_bn,
    vgg16_bn,
    vgg19_bn,
    wide_resnet50_2,
)
from ._dp import make_model as make
from ._dp import model_names as names

__all__ = sorted(name for name in globals() if not name.startswith("_"))
