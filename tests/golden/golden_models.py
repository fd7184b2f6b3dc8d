"""Twenty training steps of torchvision's networks in PyTorch: in float64, and the error of float32."""

import functools

import numpy as np
import torch
import torch.nn.functional as F
import torchvision

from golden_resnet import OTHERS, TRACKED, as_products, batch_of, drawn_state, network

STEPS = 20
CLASSES = 10
SIZE = 32     # of the images
BATCH = 8     # a power of two: the factor 1/batch is exact
BATCHES = 4   # are used in turn, so the loss falls
FIRST = 1000  # the number of the first one
# The rate is small because the inputs of the classifier are large: their mean is 3, by the biases of drawn_state(). The
# weight decay is large so that it matters at this rate.
LR, MOMENTUM, WEIGHT_DECAY = (float(np.float32(value)) for value in (1e-4, 0.9, 0.1))


class NarrowResNet(torchvision.models.ResNet):
    """torchvision's ResNet with a quarter of the channels everywhere."""

    def __init__(self, **options):
        super().__init__(torchvision.models.resnet.Bottleneck, [3, 4, 6, 3], **options)
        self.fc = torch.nn.Linear(self.inplanes, CLASSES)

    def _make_layer(self, block, planes, blocks, **options):
        if planes == 64:  # the first stage
            self.inplanes = 16
            self.conv1 = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
            self.bn1 = torch.nn.BatchNorm2d(16)
        return super()._make_layer(block, planes // 4, blocks, **options)


# What is compared with the engine's reference device. That has plain loops, so the ResNets are narrow.
SMALL = {
    "resnext50_32x4d": lambda: NarrowResNet(groups=32, width_per_group=4),
    "wide_resnet50_2": lambda: NarrowResNet(width_per_group=128),
} | {
    name: functools.partial(network, name, "imagenet", True, CLASSES) for name in ("mobilenet_v2", *OTHERS)
}


def run(model, before, dtype):
    """The loss of each step, and the state at the end."""
    model.load_state_dict(before, strict=True)
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(STEPS):
        images, labels = batch_of(FIRST + step % BATCHES, BATCH, SIZE, CLASSES)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(dtype)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), {key: tensor.double().numpy().copy() for key, tensor in model.state_dict().items()}


def all_steps(name):
    """The losses, with the error of PyTorch's float32. Of the small network also products of the state at the end,
    relative to how far it moved."""
    before = drawn_state(name, network(name, "imagenet", True, CLASSES))
    losses, _ = run(network(name, "imagenet", True, CLASSES), before, torch.float64)
    single, _ = run(network(name, "imagenet", True, CLASSES), before, torch.float32)
    tensors = {"steps.loss": losses, "steps.float32_error": np.abs(single / losses - 1)}
    print(name, "losses:", *(f"{loss:.4f}" for loss in losses))
    print(name, "losses, float32 of PyTorch:", *(f"{error:.0e}" for error in tensors["steps.float32_error"]))

    before = drawn_state(name, SMALL[name]())
    tensors["small.loss"], after = run(SMALL[name](), before, torch.float64)
    for key, values in after.items():
        if key.endswith("num_batches_tracked"):
            assert values == TRACKED + STEPS
            continue
        moved = np.linalg.norm(values - before[key].double().numpy())
        assert moved > 0, key
        tensors |= as_products(f"small.end.{key}", values, moved)
    print(name, "small, losses:", *(f"{loss:.4f}" for loss in tensors["small.loss"]))
    return tensors
