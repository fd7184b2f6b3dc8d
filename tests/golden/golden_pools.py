"""PyTorch's pools with windows of any shape, dilated and in ceil mode, and adaptive average pools, in float64, on
inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F

from golden_windows import pair

MAX_POOLS = [  # x, kernel, options of F.max_pool2d
    ((2, 3, 7, 6), (2, 3), dict(stride=(2, 1), padding=(0, 1))),
    ((1, 16, 9, 11), 3, dict(stride=2, padding=1, dilation=2)),
    ((2, 5, 8, 7), (3, 2), dict(stride=(1, 2), dilation=(2, 3))),
    ((2, 3, 7, 10), 3, dict(stride=2, ceil_mode=True)),
    ((1, 4, 7, 7), 2, dict(stride=2, ceil_mode=True)),
    ((2, 8, 2, 2), 3, dict(stride=2, ceil_mode=True)),
    ((1, 2, 9, 8), (5, 2), dict(stride=4, padding=(2, 1), ceil_mode=True)),
    ((2, 3, 5, 6), 3, dict(stride=1, padding=1, ceil_mode=True)),
    ((1, 3, 10, 7), 2, dict(stride=3, padding=1, dilation=2, ceil_mode=True)),
]
AVG_POOLS = [  # x, kernel, options of F.avg_pool2d
    ((2, 3, 7, 6), (2, 3), dict(stride=(2, 1), padding=(0, 1))),
    ((1, 16, 9, 11), (1, 4), dict(padding=(0, 2))),
]
ADAPTIVE_POOLS = [  # x, size of the output
    ((2, 3, 7, 5), 3), ((1, 16, 4, 9), (2, 3)), ((2, 5, 1, 1), 7), ((2, 8, 5, 3), (7, 2)), ((1, 4, 6, 6), (1, 6)),
    ((1, 32, 10, 13), (7, 7)),
]


def more_behind(size, count, kernel, stride, padding, dilation):
    return max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - size - 2 * padding)


def all_pools():
    generator = np.random.default_rng(20291129)

    def uniform(*shape):
        return generator.uniform(-1, 1, shape).astype(np.float32)

    def case(shape, forward):
        x = uniform(*shape)
        variable = torch.tensor(x.astype(np.float64), requires_grad=True)
        y = forward(variable)
        dy = uniform(*y.shape)
        y.backward(torch.tensor(dy.astype(np.float64)))
        return {"x": x, "dy": dy, "y": y.detach().numpy(), "dx": variable.grad.numpy()}

    tensors = {}

    def store(name, case, *window):
        if window:
            kernel, stride, padding, dilation = (pair(value) for value in window)
            sizes = zip(case["x"].shape[2:], case["y"].shape[2:], kernel, stride, padding, dilation)
            case["window"] = np.array([kernel, stride, padding, dilation, [more_behind(*side) for side in sizes]], np.int64)
        tensors.update({f"{name}.{key}": value for key, value in case.items()})

    for i, (shape, kernel, options) in enumerate(MAX_POOLS):
        store(f"max_pool2d.{i}", case(shape, lambda x: F.max_pool2d(x, kernel, **options)), kernel,
              options.get("stride", kernel), options.get("padding", 0), options.get("dilation", 1))
    for i, (shape, kernel, options) in enumerate(AVG_POOLS):
        store(f"avg_pool2d.{i}", case(shape, lambda x: F.avg_pool2d(x, kernel, **options)), kernel,
              options.get("stride", kernel), options.get("padding", 0), 1)
    for i, (shape, size) in enumerate(ADAPTIVE_POOLS):
        store(f"adaptive_avg_pool2d.{i}", case(shape, lambda x: F.adaptive_avg_pool2d(x, size)))
    return tensors
