"""PyTorch's activation functions in float64, on inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F

# The names of dp/functions.h.
FUNCTIONS = {
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, float(np.float32(0.01))),  # the default, as a network in float32 has it
    "leaky_relu_0.2": lambda x: F.leaky_relu(x, float(np.float32(0.2))),
    "elu": F.elu,
    "elu_0.5": lambda x: F.elu(x, 0.5),
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "times_-0.3": lambda x: float(np.float32(-0.3)) * x,
}


def all_functions():
    generator = np.random.default_rng(20281128)
    # Small and large arguments of both signs, and those at which a function changes its form.
    kinks = np.array([-6, -3, 0, 3, 6, -100, 100, 1e-20], np.float32)
    x = np.concatenate([generator.uniform(-8, 8, 96), generator.uniform(-0.1, 0.1, 16), kinks]).astype(np.float32)
    dy = generator.uniform(-1, 1, x.shape).astype(np.float32)
    tensors = {"x": x.reshape(4, 30), "dy": dy.reshape(4, 30)}
    for name, function in FUNCTIONS.items():
        argument = torch.tensor(tensors["x"].astype(np.float64), requires_grad=True)
        value = function(argument)
        value.backward(torch.tensor(tensors["dy"].astype(np.float64)))
        tensors |= {f"{name}.y": value.detach().numpy(), f"{name}.dx": argument.grad.numpy()}
    return tensors
