"""PyTorch's convolutions in groups, dilated, with different sizes across and down, and with padding='same', in float64,
on inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F

CASES = [  # x, output channels, options of F.conv2d
    ((2, 4, 7, 6), 6, 3, dict(padding=1, groups=2)),
    ((2, 6, 7, 9), 6, 3, dict(padding=1, groups=6)),
    ((2, 6, 8, 7), 12, 3, dict(stride=2, padding=1, groups=6)),
    ((1, 24, 7, 7), 24, 5, dict(padding=2, groups=24)),
    ((2, 32, 5, 6), 64, 3, dict(stride=2, groups=2)),
    ((1, 3, 9, 11), 4, (1, 3), dict(stride=(1, 2), padding=(0, 1))),
    ((2, 3, 9, 8), 4, 3, dict(padding=2, dilation=2)),
    ((1, 4, 11, 9), 4, (3, 5), dict(stride=(2, 1), padding=(1, 4), dilation=(1, 2), groups=2)),
    ((2, 3, 6, 7), 4, (2, 4), dict(padding="same")),
    ((1, 8, 8, 8), 8, 4, dict(padding="same", dilation=(1, 3), groups=8)),
]


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def numbers(kernel, stride=1, padding=0, dilation=1, groups=1):
    """Kernel, stride, padding above and left, dilation, more padding below and right; each down, then across."""
    kernel, stride, dilation = pair(kernel), pair(stride), pair(dilation)
    more = (0, 0)
    if padding == "same":
        around = [d * (k - 1) for d, k in zip(dilation, kernel)]
        padding, more = tuple(a // 2 for a in around), tuple(a % 2 for a in around)
    return np.array([kernel, stride, pair(padding), dilation, more], np.int64)


def all_convolutions():
    generator = np.random.default_rng(20281128)

    def uniform(*shape):
        return generator.uniform(-1, 1, shape).astype(np.float32)

    tensors = {}
    for i, (shape, out, kernel, options) in enumerate(CASES):
        x, w, b = uniform(*shape), uniform(out, shape[1] // options.get("groups", 1), *pair(kernel)), uniform(out)
        variables = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in (x, w, b)]
        y = F.conv2d(*variables, **options)
        dy = uniform(*y.shape)
        y.backward(torch.tensor(dy.astype(np.float64)))
        case = {"x": x, "w": w, "b": b, "dy": dy, "y": y.detach().numpy(), "window": numbers(kernel, **options)}
        case |= {name: variable.grad.numpy() for name, variable in zip(("dx", "dw", "db"), variables)}
        tensors |= {f"conv2d.{i}.{name}": array for name, array in case.items()}
    return tensors
