"""PyTorch's layers of residual networks in float64, on small inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F

generator = np.random.default_rng(20240611)
STEPS = 3
KINK = 1e-3  # least distance of a ReLU's input from zero


def uniform(*shape, low=-1, high=1):
    return generator.uniform(low, high, shape).astype(np.float32)


def variable(array):
    return torch.tensor(array.astype(np.float64), requires_grad=True)


def fixed(array):
    return torch.tensor(array.astype(np.float64))


def gradients(y, dy, **variables):
    y.backward(fixed(dy))
    return {f"d{name}": tensor.grad.numpy() for name, tensor in variables.items()}


def batch_norm(shape, eps=1e-5, momentum=0.1, offset=0):
    """Three training steps on three batches, and the gradients of the last step. Then an evaluation of its input."""
    channels = shape[1]
    x = (uniform(STEPS, *shape) + np.float32(offset)).astype(np.float32)
    weight, bias, dy = uniform(channels, low=0.5, high=2), uniform(channels), uniform(*shape)
    mean, variance = uniform(channels), uniform(channels, low=0.5, high=2)
    running = [fixed(mean), fixed(variance)]
    wt, bt = variable(weight), variable(bias)
    for step in x:
        xt = variable(step)
        y = F.batch_norm(xt, *running, wt, bt, training=True, momentum=momentum, eps=eps)
    tensors = gradients(y, dy, x=xt, w=wt, b=bt)
    evaluated = F.batch_norm(xt, *running, wt, bt, training=False, eps=eps)
    return tensors | {
        "x": x, "w": weight, "b": bias, "dy": dy, "mean": mean, "variance": variance,
        "settings": np.array([eps, momentum]), "y": y.detach().numpy(), "evaluated": evaluated.detach().numpy(),
        "new_mean": running[0].numpy(), "new_variance": running[1].numpy(),
    }


def group_norm(shape, groups, eps=1e-5, affine=True, offset=0):
    """One group for each channel: instance normalisation."""
    channels = shape[1]
    x, dy = (uniform(*shape) + np.float32(offset)).astype(np.float32), uniform(*shape)
    weight, bias = uniform(channels, low=0.5, high=2), uniform(channels)
    xt, wt, bt = variable(x), variable(weight), variable(bias)
    own = (wt, bt) if affine else (None, None)
    if groups == channels:
        y = F.instance_norm(xt, None, None, *own, eps=eps)
    else:
        y = F.group_norm(xt, groups, *own, eps=eps)
    tensors = gradients(y, dy, x=xt, w=wt, b=bt) if affine else gradients(y, dy, x=xt)
    return tensors | {
        "x": x, "w": weight, "b": bias, "dy": dy, "y": y.detach().numpy(),
        "settings": np.array([groups, eps, affine], np.float64),
    }


def norm_add_relu(shape):
    while True:
        x, addend, dy = uniform(*shape), uniform(*shape), uniform(*shape)
        weight, bias = uniform(shape[1], low=0.5, high=2), uniform(shape[1])
        xt, at, wt, bt = variable(x), variable(addend), variable(weight), variable(bias)
        before = F.batch_norm(xt, None, None, wt, bt, training=True) + at
        if before.abs().min() > KINK:
            break
    y = F.relu(before)
    tensors = gradients(y, dy, x=xt, w=wt, b=bt, addend=at)
    return tensors | {"x": x, "addend": addend, "w": weight, "b": bias, "dy": dy, "y": y.detach().numpy()}


def avg_pool2d(shape, kernel=0, stride=1, padding=0):
    """Without a kernel size: over the whole image."""
    x = uniform(*shape)
    xt = variable(x)
    y = F.avg_pool2d(xt, kernel, stride, padding) if kernel else F.adaptive_avg_pool2d(xt, 1)
    dy = uniform(*y.shape)
    window = np.array([kernel, stride, padding], np.int64)
    return gradients(y, dy, x=xt) | {"x": x, "dy": dy, "y": y.detach().numpy(), "window": window}


def add(shape):
    x, addend = uniform(*shape), uniform(*shape)
    y = fixed(x) + fixed(addend)
    return {"x": x, "addend": addend, "y": y.numpy(), "rectified": F.relu(y).numpy()}


def multiply(shape, factors):
    x, s, dy = uniform(*shape), uniform(*factors), uniform(*shape)
    xt, st = variable(x), variable(s)
    y = xt * st
    return gradients(y, dy, x=xt, s=st) | {"x": x, "s": s, "dy": dy, "y": y.detach().numpy()}


def concat(first, second, begin, end):
    """The channels of both, and of those the ones from begin to end - 1."""
    a, b = uniform(*first), uniform(*second)
    at, bt = variable(a), variable(b)
    y = torch.cat([at, bt], dim=1)
    part = y[:, begin:end]
    dy = uniform(*part.shape)
    tensors = gradients(part, dy, a=at, b=bt)
    return tensors | {
        "a": a, "b": b, "dy": dy, "y": y.detach().numpy(), "part": part.detach().numpy(),
        "channels": np.array([begin, end], np.int64),
    }


def conv2d(shape, out, kernel, stride):
    """Convolutions without a bias, as in residual networks."""
    x, w = uniform(*shape), uniform(out, shape[1], kernel, kernel)
    xt, wt = variable(x), variable(w)
    y = F.conv2d(xt, wt, stride=stride, padding=kernel // 2)
    dy = uniform(*y.shape)
    window = np.array([kernel, stride, kernel // 2], np.int64)
    return gradients(y, dy, x=xt, w=wt) | {"x": x, "w": w, "dy": dy, "y": y.detach().numpy(), "window": window}


class Block(torch.nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(out)
        self.conv2 = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(out)
        reshapes = stride != 1 or channels != out
        self.downsample = torch.nn.Sequential(
            torch.nn.Conv2d(channels, out, 1, stride, bias=False), torch.nn.BatchNorm2d(out)) if reshapes else None

    def forward(self, x):
        before = [self.bn1(self.conv1(x))]
        before.append(self.bn2(self.conv2(F.relu(before[0]))) + (self.downsample(x) if self.downsample else x))
        self.kink = min(z.abs().min().item() for z in before)
        return F.relu(before[1]).flatten(1)


def block(shape, out, stride):
    """Two training steps on two batches, and the gradients of the second. Then a prediction for its input."""
    while True:
        torch.manual_seed(int(generator.integers(1 << 30)))
        model = Block(shape[1], out, stride)
        initial = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
        model.double()
        x = uniform(2, *shape)
        model(fixed(x[0]))
        y = model(fixed(x[1]))
        if model.kink > KINK:
            break
    dy = uniform(*y.shape)
    y.backward(fixed(dy))
    gradient = {f"gradient.{name}": p.grad.numpy().copy() for name, p in model.named_parameters()}
    after = {f"after.{name}": tensor.numpy().copy() for name, tensor in model.named_buffers()}
    model.eval()
    prediction = model(fixed(x[1])).detach().numpy()
    return {f"initial.{name}": tensor for name, tensor in initial.items()} | gradient | after | {
        "x": x, "dy": dy, "y": y.detach().numpy(), "prediction": prediction, "stride": np.array([stride], np.int64),
    }


def all_layers():
    groups = {
        "batch_norm": [
            batch_norm((4, 5, 6, 7)), batch_norm((2, 20, 3, 3), eps=1e-3, momentum=0.3), batch_norm((7, 3, 1, 1)),
            batch_norm((3, 16, 4, 4), offset=50), batch_norm((1, 9, 5, 5), momentum=1.0),
        ],
        "norm_add_relu": [norm_add_relu((3, 5, 4, 5)), norm_add_relu((2, 16, 3, 3))],
        "avg_pool2d": [
            avg_pool2d((2, 3, 6, 6), 2, 2), avg_pool2d((1, 17, 7, 5), 3, 2, 1), avg_pool2d((2, 16, 5, 5), 3, 1, 1),
            avg_pool2d((3, 20, 4, 4)), avg_pool2d((2, 5, 7, 3)), avg_pool2d((2, 8, 1, 1)),
        ],
        "add": [add((2, 5, 3, 7)), add((3, 16, 4, 4))],
        "conv2d": [
            conv2d((2, 16, 7, 7), 16, 3, 2), conv2d((2, 16, 8, 8), 32, 1, 2), conv2d((3, 16, 5, 4), 24, 1, 1),
            conv2d((2, 3, 12, 12), 16, 7, 2),
        ],
        "block": [block((3, 8, 6, 6), 8, 1), block((3, 8, 7, 7), 16, 2)],
        "group_norm": [
            group_norm((3, 6, 5, 4), 2), group_norm((2, 20, 3, 3), 5, eps=1e-3), group_norm((2, 16, 4, 4), 1, offset=50),
            group_norm((2, 7, 5, 6), 7), group_norm((4, 8, 3, 3), 4, affine=False),
            group_norm((3, 5, 4, 4), 5, eps=1e-2, affine=False),
        ],
        "multiply": [
            multiply((2, 5, 3, 4), (2, 5, 3, 4)), multiply((3, 20, 4, 5), (3, 20, 1, 1)),
            multiply((2, 16, 5, 3), (2, 1, 5, 3)), multiply((3, 7), (3, 7)),
        ],
        "concat": [concat((2, 16, 3, 4), (2, 20, 3, 4), 9, 31), concat((3, 5), (3, 9), 2, 7)],
    }
    return {
        f"{group}.{i}.{name}": tensor
        for group, cases in groups.items()
        for i, case in enumerate(cases)
        for name, tensor in case.items()
    }
