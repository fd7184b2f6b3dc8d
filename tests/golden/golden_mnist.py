"""The first steps of mnist_convnet in PyTorch: in float64, and the error of float32."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from philox import Random

SEED = 42
BATCH = 60
STEPS = 6
WHOLE = 20000     # of larger tensors only PICKED elements are stored
PICKED = 4096
LR, MOMENTUM, WEIGHT_DECAY, SMOOTHING = (float(np.float32(value)) for value in (0.01, 0.9, 5e-4, 0.1))


class MnistConvnet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3)
        self.conv2 = torch.nn.Conv2d(32, 64, 3)
        self.fc1 = torch.nn.Linear(9216, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.max_pool2d(x, 2).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


def bound_of(model, name):
    layer = getattr(model, name.split(".")[0])
    fan_in = layer.weight[0].numel()
    return np.float32(1) / np.sqrt(np.float32(fan_in))


def initial_weights():
    """The weights that dp::DataParallel draws from options.seed. Checks the bounds of PyTorch's reset_parameters."""
    torch.manual_seed(0)
    model, weights = MnistConvnet(), {}
    for index, (name, parameter) in enumerate(model.named_parameters()):
        bound = bound_of(model, name)
        largest = parameter.detach().abs().max().item()
        assert 0.6 * bound < largest <= bound * (1 + 1e-6), f"PyTorch initialises {name} within {largest}, not {bound}"
        assert parameter.numel() < 1000 or largest > 0.99 * bound, f"PyTorch initialises {name} within {largest}, not {bound}"
        drawn = Random(SEED, "init", index).symmetric(bound, parameter.numel())
        weights[name] = torch.tensor(drawn.reshape(parameter.shape))
    return weights


def batch_of(step):
    images = Random(SEED, "synthetic", step).symmetric(1, BATCH * 28 * 28).reshape(BATCH, 1, 28, 28)
    labels = Random(SEED, "synthetic", step, 1).below(10, BATCH)
    return torch.tensor(images), torch.tensor(labels.astype(np.int64))


def run(dtype, steps, smoothing):
    """Weights before and after, the loss of each step, the gradients of the last step."""
    model = MnistConvnet().to(dtype)
    model.load_state_dict(initial_weights())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    losses = []
    for step in range(steps):
        images, labels = batch_of(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(dtype)), labels, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    gradients = {name: p.grad.double().numpy().copy() for name, p in model.named_parameters()}
    return state, gradients, losses


def stored(prefix, name, values):
    """All of `values`, or some elements together with their indices."""
    flat = values.reshape(-1)
    if flat.size < WHOLE:
        return {f"{prefix}.{name}": values}
    places = np.sort(np.random.default_rng(1).choice(flat.size, PICKED, replace=False)).astype(np.int64)
    return {f"{prefix}.{name}": flat[places], f"{prefix}.{name}.places": places}


def scalar(value):
    return np.array([value], np.float64)


def all_steps():
    before = {name: w.double().numpy() for name, w in initial_weights().items()}
    after, _, losses = run(torch.float64, STEPS, 0.0)
    single, _, _ = run(torch.float32, STEPS, 0.0)
    _, gradients, smooth_loss = run(torch.float64, 1, SMOOTHING)
    _, single_gradients, _ = run(torch.float32, 1, SMOOTHING)
    tensors = {"steps.loss": np.array(losses), "smooth.loss": np.array(smooth_loss)}
    for name, initial in before.items():
        moved = np.linalg.norm(after[name] - initial)
        tensors |= stored("steps.weight", name, after[name]) | stored("smooth.gradient", name, gradients[name])
        tensors[f"steps.moved.{name}"] = scalar(moved)
        tensors[f"steps.float32_error.{name}"] = scalar(np.linalg.norm(single[name] - after[name]) / moved)
        size = np.linalg.norm(gradients[name])
        tensors[f"smooth.norm.{name}"] = scalar(size)
        tensors[f"smooth.float32_error.{name}"] = scalar(np.linalg.norm(single_gradients[name] - gradients[name]) / size)
        tensors[f"initial.sum.{name}"] = scalar(math.fsum(initial.reshape(-1)))
    images, labels = batch_of(0)
    tensors["batch.sum"] = np.array([math.fsum(images.double().numpy().reshape(-1)), float(labels.sum())])
    return tensors
