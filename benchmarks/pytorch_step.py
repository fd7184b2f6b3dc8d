#!/usr/bin/env python3
"""Seconds per training step in PyTorch on the CPU: the same server as step.cpp, for the same networks.

Commands on stdin, one JSON object a line on stdout, idle in between; benchmarks/README.md has the commands and variants.
Start it with OMP_NUM_THREADS, OMP_PROC_BIND=true and OMP_PLACES=cores in the environment, as compare.py does.
"""

import argparse
import json
import math
import os
import re
import sys
import time

import torch
from torch import nn
import torch.nn.functional as F

SETTLE_STEPS = 2  # as in step.cpp


class MnistConvnet(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(self.dropout2(x))


class Mlp(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.fc1 = nn.Linear(math.prod(input_shape), 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def resnet18(input_shape, classes):
    """torchvision's, with the 3x3 stem for images below 64 pixels."""
    import torchvision

    model = torchvision.models.resnet18(num_classes=classes)
    if input_shape[1] < 64:
        model.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


MODELS = {"mnist_convnet": MnistConvnet, "mlp": Mlp, "resnet18": resnet18}


def read_inputs(path, model, input_shape, batch, batches):
    """What step --save-inputs wrote: weights, images, labels."""
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    at = 0

    def take(shape, dtype):
        nonlocal at
        count = math.prod(shape)
        tensor = torch.frombuffer(raw, dtype=dtype, count=count, offset=at).reshape(shape).clone()
        at += 4 * count
        return tensor

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(take(parameter.shape, torch.float32))
    images = [take((batch, *input_shape), torch.float32) for _ in range(batches)]
    labels = [take((batch,), torch.int32).long() for _ in range(batches)]
    if at != len(raw):
        sys.exit(f"pytorch_step: {path} holds {len(raw)} bytes where this model and these batches take {at}")
    return images, labels


def make_optimizer(model):
    settings = {"lr": 0.01, "momentum": 0.9}
    try:
        return torch.optim.SGD(model.parameters(), **settings, foreach=True)
    except TypeError:  # before PyTorch 1.12
        return torch.optim.SGD(model.parameters(), **settings)


class Variant:
    def __init__(self, make_model, images, labels, memory_format):
        self.model = make_model().to(memory_format=memory_format).train()
        self.images = [x.contiguous(memory_format=memory_format) for x in images] if images[0].dim() == 4 else images
        self.labels = labels
        self.optimizer = make_optimizer(self.model)
        self.next = 0

    def train(self, steps):
        """The mean loss of these steps, as a tensor."""
        total = torch.zeros(())
        for _ in range(steps):
            i = self.next % len(self.images)
            self.next += 1
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self.model(self.images[i]), self.labels[i])
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return total / steps

    def measure(self, steps):
        self.train(SETTLE_STEPS)
        start = time.perf_counter()
        loss = self.train(steps).item()
        seconds = (time.perf_counter() - start) / steps
        if not math.isfinite(loss):
            raise ValueError("the loss is not finite")
        return seconds, loss


def mapped_library(pattern):
    """The file name of a library that this process has loaded."""
    with open("/proc/self/maps") as maps:
        names = {os.path.basename(os.path.realpath(line.split()[-1])) for line in maps if re.search(pattern, line)}
    return ", ".join(sorted(names)) or "none"


def spread_threads():
    """OMP_PROC_BIND binds OpenMP's threads, each to a core; a BLAS with threads of its own then leaves those on the first
    thread's core. Moves each of them to a core of its own beside it."""
    process = os.getpid()
    taken = os.sched_getaffinity(process)
    others = sorted(set().union(*(os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task"))) - taken)
    strays = [int(t) for t in os.listdir("/proc/self/task") if int(t) != process and os.sched_getaffinity(int(t)) == taken]
    if len(taken) == 1 and others:
        for i, thread in enumerate(sorted(strays)):
            os.sched_setaffinity(thread, {others[i % len(others)]})
    return sorted(sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task"))


def pair(a, b, steps, slices):
    seconds = {0: [], 1: []}
    for i in range(slices):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            seconds[which].append((a, b)[which].measure(steps)[0])
    return {"seconds_a": seconds[0], "seconds_b": seconds[1]}


def answer(line, variants):
    words = line.split()
    if len(words) == 3 and words[0] == "run":
        seconds, loss = variants[words[1]].measure(int(words[2]))
        return {"variant": words[1], "steps": int(words[2]), "seconds_per_step": seconds, "loss": loss}
    if len(words) == 5 and words[0] == "pair":
        times = pair(variants[words[1]], variants[words[2]], int(words[3]), int(words[4]))
        return {"a": words[1], "b": words[2], "steps": int(words[3]), **times}
    raise ValueError(f"the command '{line.strip()}'; known: run <variant> <steps>, pair <a> <b> <steps> <slices>")


def main():
    parser = argparse.ArgumentParser(description="Seconds per training step, on demand: commands on stdin, JSON lines on stdout")
    parser.add_argument("--inputs", required=True, help="the file that step --save-inputs wrote")
    parser.add_argument("--model", default="mnist_convnet", choices=sorted(MODELS))
    parser.add_argument("--input", default="1,28,28", help="shape of a sample")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--spread", action="store_true", help="give BLAS threads cores of their own")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(42)
    shape = tuple(int(size) for size in options.input.split(","))
    start = MODELS[options.model](shape, options.classes)
    images, labels = read_inputs(options.inputs, start, shape, options.batch, options.batches)

    def make_model():
        model = MODELS[options.model](shape, options.classes)
        model.load_state_dict(start.state_dict())
        return model

    variants = {
        name: Variant(make_model, images, labels, memory_format)
        for name, memory_format in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last))
    }
    with torch.no_grad():
        start_loss = F.cross_entropy(start.eval()(images[0]), labels[0]).item()
    for variant in variants.values():
        variant.train(1)  # every thread there is has been started now
    threads = spread_threads() if options.spread else None
    dnnl = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", torch.__config__.show())
    ready = {
        "ready": "pytorch", "model": options.model, "batch": options.batch, "variants": list(variants),
        "threads": torch.get_num_threads(), "cores_of_threads": threads, "start_loss": start_loss,
        "versions": {
            "torch": torch.__version__, "torch's oneDNN": dnnl.group(1) if dnnl else "none",
            "torch's BLAS": mapped_library(r"openblas|libmkl|libblis|libblas"), "python": sys.version.split()[0],
        },
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        try:
            print(json.dumps(answer(line, variants)), flush=True)
        except KeyError as error:
            print(json.dumps({"error": f"no variant {error}; the first line of output lists them"}), flush=True)
        except ValueError as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
