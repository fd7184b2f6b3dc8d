"""Twenty steps of a small network with each optimizer in PyTorch: in float64, and the error of float32."""

import numpy as np
import torch
import torch.nn.functional as F

from philox import Random

SEED = 42
BATCH = 16  # a power of two: the factor 1/batch is exact
STEPS = 20
SHAPES = {"fc1.weight": (16, 36), "fc1.bias": (16,), "fc2.weight": (7, 16), "fc2.bias": (7,)}


class Lion(torch.optim.Optimizer):
    """The rule of the paper, https://arxiv.org/abs/2302.06675, algorithm 2. PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                average = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                update = torch.sign(beta1 * average + (1 - beta1) * weight.grad)
                weight -= group["lr"] * (update + group["weight_decay"] * weight)
                average.copy_(beta2 * average + (1 - beta2) * weight.grad)


class Lamb(torch.optim.Optimizer):
    """timm.optim.Lamb without its gradient clipping; algorithm 2 of the paper, https://arxiv.org/abs/1904.00962."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            group["step"] = group.get("step", 0) + 1
            for weight in group["params"]:
                state = self.state[weight]
                mean = state.setdefault("exp_avg", torch.zeros_like(weight))
                square = state.setdefault("exp_avg_sq", torch.zeros_like(weight))
                mean.copy_(beta1 * mean + (1 - beta1) * weight.grad)
                square.copy_(beta2 * square + (1 - beta2) * weight.grad**2)
                root = (square / (1 - beta2 ** group["step"])).sqrt()
                update = mean / (1 - beta1 ** group["step"]) / (root + group["eps"]) + group["weight_decay"] * weight
                norms = weight.norm().item(), update.norm().item()
                ratio = norms[0] / norms[1] if group["weight_decay"] != 0 and min(norms) > 0 else 1
                weight -= group["lr"] * ratio * update


def orthogonalized(matrix, coefficients, steps, eps):
    """torch.optim._muon._zeropower_via_newtonschulz in the matrix's own type instead of bfloat16."""
    a, b, c = coefficients
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for matrices, but with orthogonalized(); torch.optim.AdamW for the others."""

    def __init__(self, params, lr=1e-3, momentum=0.95, nesterov=True, match_rms=True, betas=(0.9, 0.999), eps=1e-8,
                 weight_decay=0.1):
        params = list(params)
        super().__init__(params, {})
        torch.optim._muon._zeropower_via_newtonschulz = orthogonalized
        self.matrices = torch.optim.Muon(
            [p for p in params if p.ndim == 2], lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw" if match_rms else "original")
        self.others = torch.optim.AdamW([p for p in params if p.ndim != 2], lr=lr, betas=betas, eps=eps,
                                        weight_decay=weight_decay)

    def step(self):
        self.matrices.step()
        self.others.step()
        for weight, state in self.matrices.state.items():  # by the names of the engine's slots
            self.state[weight] = {"exp_avg": state["momentum_buffer"], "exp_avg_sq": torch.zeros_like(weight)}
        self.state.update(self.others.state)


# Each case: its name begins with that of the optimizer; PyTorch's class; the options of dp_train.
CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight-decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "opt-eps": 1e-8, "weight-decay": 0.1}),
    "adamw_other": (torch.optim.AdamW, {"lr": 0.003, "opt-betas": (0.8, 0.95), "opt-eps": 1e-3, "weight-decay": 0}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "opt-eps": 1e-8}),
    "adam_other": (torch.optim.Adam, {"lr": 0.003, "opt-betas": (0.8, 0.95), "opt-eps": 1e-3, "weight-decay": 0.1}),
    "lion": (Lion, {"lr": 0.003, "weight-decay": 0.1}),
    "lion_other": (Lion, {"lr": 0.001, "opt-betas": (0.8, 0.95)}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.003, "opt-eps": 1e-8}),
    "rmsprop_momentum": (torch.optim.RMSprop, {"lr": 0.001, "opt-alpha": 0.9, "opt-eps": 1e-3, "momentum": 0.9}),
    "rmsprop_centered": (
        torch.optim.RMSprop,
        {"lr": 0.001, "opt-eps": 1e-3, "momentum": 0.5, "opt-centered": True, "weight-decay": 0.1},
    ),
    "lamb": (Lamb, {"lr": 0.01, "opt-eps": 1e-6, "weight-decay": 0.1}),
    "lamb_other": (Lamb, {"lr": 0.003, "opt-betas": (0.8, 0.95), "opt-eps": 1e-3, "weight-decay": 0}),
    "muon": (Muon, {"lr": 0.003, "momentum": 0.95, "opt-eps": 1e-8, "weight-decay": 0.1}),
    "muon_other": (
        Muon,
        {"lr": 0.01, "momentum": 0.8, "nesterov": False, "opt-match-rms": False, "opt-betas": (0.8, 0.95),
         "opt-eps": 1e-3, "weight-decay": 0},
    ),
}
ARGUMENTS = {  # the others have equal names
    "opt-alpha": "alpha",
    "opt-betas": "betas",
    "opt-centered": "centered",
    "opt-eps": "eps",
    "opt-match-rms": "match_rms",
    "weight-decay": "weight_decay",
}
IN_DOUBLE = {"opt-alpha", "opt-betas"}  # the engine has the other numbers in float32


def as_stored(option, value):
    return value if option in IN_DOUBLE or isinstance(value, bool) else float(np.float32(value))


def initial_weights():
    weights = {}
    for index, (name, shape) in enumerate(SHAPES.items()):
        fan_in = SHAPES[name.split(".")[0] + ".weight"][1]
        bound = np.float32(1) / np.sqrt(np.float32(fan_in))
        weights[name] = Random(SEED, "init", index).symmetric(bound, int(np.prod(shape))).reshape(shape)
    return weights


def batch_of(step):
    images = Random(SEED, "synthetic", step).symmetric(1, BATCH * 36).reshape(BATCH, 36)
    labels = Random(SEED, "synthetic", step, 1).below(7, BATCH)
    return torch.tensor(images), torch.tensor(labels.astype(np.int64))


def run(make, dtype):
    weights = {name: torch.tensor(w).to(dtype).requires_grad_() for name, w in initial_weights().items()}
    optimizer = make(list(weights.values()))
    for step in range(STEPS):
        images, labels = batch_of(step)
        hidden = F.relu(F.linear(images.to(dtype), weights["fc1.weight"], weights["fc1.bias"]))
        optimizer.zero_grad()
        F.cross_entropy(F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"]), labels).backward()
        optimizer.step()
    values = {name: w.detach().double().numpy().copy() for name, w in weights.items()}
    state = {
        f"{slot}.{name}": value.double().numpy().copy()
        for name, w in weights.items()
        for slot, value in optimizer.state[w].items()
        if slot != "step"
    }
    return values, state


def all_runs():
    tensors = {}
    for optimizer, (kind, given) in CASES.items():
        options = {option: as_stored(option, value) for option, value in given.items()}
        make = lambda p: kind(p, **{ARGUMENTS.get(option, option): value for option, value in options.items()})
        after, state = run(make, torch.float64)
        single, _ = run(make, torch.float32)
        tensors |= {f"{optimizer}.option.{name}": np.array(value, np.float64).ravel() for name, value in options.items()}
        for name, initial in initial_weights().items():
            moved = np.linalg.norm(after[name] - initial)
            tensors[f"{optimizer}.weight.{name}"] = after[name]
            tensors[f"{optimizer}.moved.{name}"] = np.array([moved])
            tensors[f"{optimizer}.float32_error.{name}"] = np.array([np.linalg.norm(single[name] - after[name]) / moved])
        tensors |= {f"{optimizer}.state.{name}": values for name, values in state.items()}
    return tensors
