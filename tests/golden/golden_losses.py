"""PyTorch's losses of outputs, and torchvision's focal loss, in float64, on inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F
from torchvision.ops import sigmoid_focal_loss


def exact(value):  # as a network in float32 has it
    return float(np.float32(value))


def bce(pos_weight):
    return lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=torch.tensor(exact(pos_weight)).double())


def focal(alpha, gamma):
    return lambda y, t: sigmoid_focal_loss(y, t, alpha=exact(alpha), gamma=exact(gamma), reduction="mean")


# The names of dp/loss_functions.h.
LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "huber_0.3": lambda y, t: F.huber_loss(y, t, delta=exact(0.3)),
    "smooth_l1": F.smooth_l1_loss,
    "smooth_l1_0.3": lambda y, t: F.smooth_l1_loss(y, t, beta=exact(0.3)),
    "smooth_l1_0": lambda y, t: F.smooth_l1_loss(y, t, beta=0),
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "bce_with_logits_3": bce(3),
    "focal": focal(0.25, 2),
    "focal_0.7_1.5": focal(0.7, 1.5),
    "focal_-1_0": focal(-1, 0),
    "soft_cross_entropy": F.cross_entropy,
}
WEIGHTS = torch.tensor([0.5, 2, 1, 0, 1.25]).double()  # of the classes


def all_losses():
    generator = np.random.default_rng(20281129)
    outputs = generator.uniform(-4, 4, (8, 5)).astype(np.float32)
    real = generator.uniform(-4, 4, outputs.shape).astype(np.float32)
    real[0, :3] = outputs[0, :3] + np.array([0, 1, -1], np.float32)  # where the slopes change
    shares = np.where(generator.uniform(size=outputs.shape) < 0.3, generator.uniform(size=outputs.shape), 0)
    shares[:6] = generator.integers(0, 2, (6, 5))  # classes that are there or not; the other rows: between
    outputs[1, :2] = [60, -60]
    tensors = {"outputs": outputs, "real": real, "shares": shares.astype(np.float32)}
    for name, loss in LOSSES.items():
        targets = tensors["shares" if name.startswith(("bce", "focal", "soft")) else "real"]
        argument = torch.tensor(outputs.astype(np.float64), requires_grad=True)
        value = loss(argument, torch.tensor(targets.astype(np.float64)))
        value.backward()
        tensors |= {f"{name}.loss": value.detach().numpy().reshape(1), f"{name}.gradient": argument.grad.numpy()}
    labels = torch.tensor(generator.integers(0, 5, 8))
    kept = 0.75  # the part of an image that mixup keeps
    mixed = kept * F.one_hot(labels, 5).double() + (1 - kept) * F.one_hot(labels.flip(0), 5).double()
    tensors["labels"] = labels.numpy().astype(np.int32)
    for name, targets, smoothing in [("weighted", labels, 0), ("weighted_smooth", labels, 0.125), ("mixed", mixed, 0.125)]:
        argument = torch.tensor(outputs.astype(np.float64), requires_grad=True)
        value = F.cross_entropy(argument, targets, weight=WEIGHTS, label_smoothing=smoothing)
        value.backward()
        tensors |= {f"{name}.loss": value.detach().numpy().reshape(1), f"{name}.gradient": argument.grad.numpy()}
    return tensors
