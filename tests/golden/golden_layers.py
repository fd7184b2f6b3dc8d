"""PyTorch's layers and optimizer in float64, on small inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F

generator = np.random.default_rng(20240607)


def uniform(*shape):
    return generator.uniform(-1, 1, shape).astype(np.float32)


def variable(array):
    return torch.tensor(array.astype(np.float64), requires_grad=True)


def weighted_layer(x, w, b, forward):
    """Inputs in float32; y, dx, dw, db in float64."""
    xt, wt, bt = variable(x), variable(w), variable(b)
    y = forward(xt, wt, bt)
    dy = uniform(*y.shape)
    y.backward(torch.tensor(dy.astype(np.float64)))
    return {
        "x": x, "w": w, "b": b, "dy": dy, "y": y.detach().numpy(),
        "dx": xt.grad.numpy(), "dw": wt.grad.numpy(), "db": bt.grad.numpy(),
    }


def conv2d(shape, out, kernel, stride, padding):
    x, w, b = uniform(*shape), uniform(out, shape[1], kernel, kernel), uniform(out)
    tensors = weighted_layer(x, w, b, lambda *t: F.conv2d(*t, stride=stride, padding=padding))
    return tensors | {"window": np.array([kernel, stride, padding], np.int64)}


def linear(shape, out):
    x, w, b = uniform(*shape), uniform(out, int(np.prod(shape[1:]))), uniform(out)
    return weighted_layer(x, w, b, lambda x, w, b: F.linear(x.flatten(1), w, b))


def unweighted(x, forward):
    xt = variable(x)
    y = forward(xt)
    dy = uniform(*y.shape)
    y.backward(torch.tensor(dy.astype(np.float64)))
    return {"x": x, "dy": dy, "y": y.detach().numpy(), "dx": xt.grad.numpy()}


def max_pool2d(shape, kernel, stride, padding, ties):
    x = generator.integers(-2, 3, shape).astype(np.float32) if ties else uniform(*shape)
    return unweighted(x, lambda x: F.max_pool2d(x, kernel, stride, padding)) | {
        "window": np.array([kernel, stride, padding], np.int64)
    }


def cross_entropy(batch, classes, smoothing):
    logits = (8 * uniform(batch, classes)).astype(np.float32)
    labels = generator.integers(0, classes, batch).astype(np.int32)
    smoothing = np.float32(smoothing)
    x = variable(logits)
    loss = F.cross_entropy(x, torch.tensor(labels.astype(np.int64)), label_smoothing=float(smoothing))
    loss.backward()
    order = np.argsort(-logits, axis=1, kind="stable")
    hits = order == labels[:, None]
    return {
        "logits": logits, "labels": labels, "smoothing": np.array([smoothing]),
        "loss": np.array([loss.item()]), "dlogits": x.grad.numpy(),
        "top": np.array([hits[:, :1].sum(), hits[:, :5].sum()], np.int64),
    }


def sgd(lr, momentum, nesterov, weight_decay):
    steps, count = 5, 64
    settings = np.array([lr, momentum, weight_decay, nesterov], np.float32)
    lr, momentum, weight_decay = (float(value) for value in settings[:3])
    w, gradients = uniform(count), uniform(steps, count)
    parameter = variable(w)
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    trajectory = []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient.astype(np.float64))
        optimizer.step()
        trajectory.append(parameter.detach().numpy().copy())
    tensors = {"settings": settings, "w": w, "gradients": gradients, "trajectory": np.stack(trajectory)}
    if momentum > 0:
        tensors["momenta"] = optimizer.state[parameter]["momentum_buffer"].numpy()
    return tensors


def all_layers():
    groups = {
        "conv2d": [
            conv2d((2, 3, 5, 6), 4, 3, 1, 0), conv2d((2, 3, 5, 6), 4, 3, 1, 1), conv2d((1, 2, 7, 7), 3, 3, 2, 1),
            conv2d((3, 5, 4, 4), 2, 1, 1, 0), conv2d((2, 4, 6, 5), 5, 1, 2, 0), conv2d((1, 1, 8, 8), 2, 5, 1, 2),
            conv2d((1, 3, 9, 9), 2, 7, 2, 3),
        ],
        "linear": [linear((3, 7), 5), linear((1, 16), 1), linear((2, 3, 2, 4), 6)],
        "relu": [unweighted(np.append(uniform(59), np.float32(0)).reshape(3, 20), F.relu)],
        "max_pool2d": [
            max_pool2d((2, 3, 6, 6), 2, 2, 0, False), max_pool2d((1, 2, 7, 5), 3, 2, 1, False),
            max_pool2d((2, 1, 5, 5), 3, 1, 1, True), max_pool2d((1, 4, 6, 7), 2, 2, 1, False),
        ],
        "cross_entropy": [
            cross_entropy(8, 10, 0), cross_entropy(8, 10, 0.1), cross_entropy(1, 3, 0.3), cross_entropy(4, 100, 0.1),
        ],
        "sgd": [
            sgd(0.1, 0, False, 0), sgd(0.1, 0.9, False, 0), sgd(0.05, 0.9, True, 0), sgd(0.1, 0.9, True, 5e-4),
            sgd(0.3, 0, False, 0.01), sgd(0.1, 0.5, False, 0.1),
        ],
    }
    return {
        f"{group}.{i}.{name}": tensor
        for group, cases in groups.items()
        for i, case in enumerate(cases)
        for name, tensor in case.items()
    }
