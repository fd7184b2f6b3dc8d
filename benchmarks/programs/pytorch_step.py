#!/usr/bin/env python3
"""Measures seconds per training step, or evaluation, in PyTorch. The same server as bench_step.cpp, for the same
networks, in one variant: `single`, `dataparallel` (nn.DataParallel, GPUs only) or `ddp` (DistributedDataParallel: one
process per rank, with RANK, WORLD_SIZE, and the file DP_BENCH_RENDEZVOUS for the rendezvous). benchmarks/README.md has
the protocol.
"""

import argparse
import functools
import math
import os
import re
import resource
import sys
import time
import traceback


def say(word, **fields):
    clean = [f"{key.replace('__', ':')}={re.sub('[^ -~]', ' ', str(value))}" for key, value in fields.items()]
    print("\t".join([word, *clean]), flush=True)


try:
    import torch
    from torch import nn
    import torch.nn.functional as F
except (ImportError, OSError) as error:  # OSError: a library of PyTorch is missing
    say("absent", reason=f"PyTorch is not installed for {sys.executable} ({error})")
    sys.exit(0)

SETTLE_STEPS = 2  # as in bench_step.cpp


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


class CifarSpeed(nn.Module):
    """The network of airbench94 (Jordan 2024)."""

    class Group(nn.Module):
        def __init__(self, channels, out):
            super().__init__()
            self.conv1 = nn.Conv2d(channels, out, 3, padding="same", bias=False)
            self.norm1 = nn.BatchNorm2d(out, eps=1e-12, momentum=0.4)
            self.conv2 = nn.Conv2d(out, out, 3, padding="same", bias=False)
            self.norm2 = nn.BatchNorm2d(out, eps=1e-12, momentum=0.4)

        def forward(self, x):
            x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
            return F.gelu(self.norm2(self.conv2(x)))

    def __init__(self, input_shape, classes):
        super().__init__()
        channels, height, width = input_shape
        self.whiten = nn.Conv2d(channels, 24, 2)
        self.layers = nn.Sequential(self.Group(24, 64), self.Group(64, 256), self.Group(256, 256))
        self.head = nn.Linear(256 * ((height - 1) // 24) * ((width - 1) // 24), classes, bias=False)
        with torch.no_grad():
            for group in self.layers:
                for conv in (group.conv1, group.conv2):
                    nn.init.dirac_(conv.weight[: conv.weight.shape[1]])

    def forward(self, x):
        x = self.layers(F.gelu(self.whiten(x)))
        return self.head(F.max_pool2d(x, 3).flatten(1)) * 0.1111111119389534  # 1 / 9, rounded to float32


def resnet(name, input_shape, classes):
    """torchvision's ResNet; for images below 64 pixels with a 3x3 stem and without max-pooling."""
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=classes)
    if input_shape[1] < 64:
        model.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def of_torchvision(name, input_shape, classes):
    import torchvision

    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    return getattr(torchvision.models, name)(num_classes=classes, **options)


RESNETS = (*(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)), "resnext50_32x4d", "wide_resnet50_2")
MODELS = {"mnist_convnet": MnistConvnet, "mlp": Mlp, "cifar_speed": CifarSpeed}
MODELS |= {name: functools.partial(resnet, name) for name in RESNETS}
MODELS |= {
    name: functools.partial(of_torchvision, name)
    for name in (
        "mobilenet_v2",
        "mobilenet_v3_small",
        "mobilenet_v3_large",
        "efficientnet_b0",
        "regnet_y_400mf",
        "shufflenet_v2_x1_0",
        "convnext_tiny",
        "densenet121",
        "googlenet",
        "vgg11_bn",
        "vgg13_bn",
        "vgg16_bn",
        "vgg19_bn",
    )
}


def read_inputs(path, model, input_shape, batch, batches, rows, images_on):
    """Reads the file of bench_step --save-inputs: weights, images (float32, or bytes for a device-resident set),
    labels. Copies the weights to `model`. Returns the images and labels of the rows [first, last) of each batch."""
    dtype, width = (torch.uint8, 1) if images_on == "device" else (torch.float32, 4)
    numbers = sum(p.numel() for p in model.parameters()) + batches * batch
    size = 4 * numbers + width * batches * batch * math.prod(input_shape)
    if os.path.getsize(path) != size:
        raise ValueError(f"{path} holds {os.path.getsize(path)} bytes where this model and these batches take {size}")
    first, last = rows
    with open(path, "rb") as file:

        def take(shape, dtype, at, of):
            """Reads rows [at[0], at[1]) of the next tensor, which has `of` rows of this shape."""
            row = math.prod(shape) * dtype.itemsize
            file.seek(row * at[0], os.SEEK_CUR)
            raw = bytearray(file.read(row * (at[1] - at[0])))
            file.seek(row * (of - at[1]), os.SEEK_CUR)
            return torch.frombuffer(raw, dtype=dtype).reshape((at[1] - at[0], *shape))

        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(take(parameter.shape, torch.float32, (0, 1), 1)[0])
        images = [take(input_shape, dtype, (first, last), batch) for _ in range(batches)]
        labels = [take((), torch.int32, (first, last), batch).long() for _ in range(batches)]
    return images, labels


def make_optimizer(model, device):
    """The fastest available SGD: fused on GPUs (PyTorch 2.3 or newer), else foreach (1.12 or newer), else the
    default."""
    settings = {"lr": 0.01, "momentum": 0.9}
    for fastest in ({"fused": True} if device.type == "cuda" else {}, {"foreach": True}, {}):
        try:
            return torch.optim.SGD(model.parameters(), **settings, **fastest)
        except TypeError:
            continue


def normalized(images):
    """Normalises bytes with the constants of bench_step's random bytes. Float images are already normalised."""
    return (images.float() / 255 - 0.5) / 0.29 if images.dtype == torch.uint8 else images


def augmented(images, padding=4):
    """Pads each image, crops a random window of the original size, and flips it with probability 1/2."""
    n, channels, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    down, right = torch.randint(2 * padding + 1, (2, n, 1, 1), device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(torch.rand(n, 1, 1, device=images.device) < 0.5, columns, width - 1 - columns) + right
    rows = torch.arange(height, device=images.device).view(1, height, 1) + down
    place = (rows * (width + 2 * padding) + columns).view(n, 1, height * width).expand(n, channels, height * width)
    return padded.flatten(2).gather(2, place).view(n, channels, height, width)


def spread_threads():
    """OMP_PROC_BIND pins each OpenMP thread to a core. Threads that a BLAS creates itself then share the core of the
    main thread. Moves each of them to another core of this process."""
    process = os.getpid()
    taken = os.sched_getaffinity(process)
    others = sorted(set().union(*(os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task"))) - taken)
    strays = [int(t) for t in os.listdir("/proc/self/task") if int(t) != process and os.sched_getaffinity(int(t)) == taken]
    if len(taken) == 1 and others:
        for i, thread in enumerate(sorted(strays)):
            os.sched_setaffinity(thread, {others[i % len(others)]})


def autocast(amp, device):
    """PyTorch's mixed precision: layers in 16 bits, losses in float32."""
    return torch.autocast(device.type, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(amp), enabled=amp != "off")


class Trainer:
    def __init__(self, model, images, labels, compiled, memory_format, amp):
        self.model, self.images, self.labels, self.memory_format = model, images, labels, memory_format
        self.device = labels[0].device
        self.optimizer = make_optimizer(model, self.device)
        self.cast = lambda: autocast(amp, self.device)
        self.scaler = torch.amp.GradScaler("cuda") if amp == "fp16" else None
        self.loss = torch.compile(self.loss_of, mode=compiled) if compiled else self.loss_of
        self.next = 0

    def loss_of(self, images, labels):
        if images.dtype == torch.uint8:  # device-resident bytes
            images = normalized(augmented(images)).contiguous(memory_format=self.memory_format)
        with self.cast():
            return F.cross_entropy(self.model(images), labels)

    def run(self, steps):
        """Runs `steps` steps and returns their mean loss. Waits for the device."""
        total = torch.zeros((), device=self.device)
        for _ in range(steps):
            i = self.next % len(self.images)
            self.next += 1
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self.images[i], self.labels[i])
            if self.scaler:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                loss.backward()
                self.optimizer.step()
            total += loss.detach()  # read now: the next compiled step overwrites it
        return total.item() / steps

    def answer(self, line):
        words = line.split()
        if len(words) != 2 or words[0] != "run" or not words[1].isdigit() or int(words[1]) < 1:
            return say("error", message=f"the command '{line.strip()}'; known: run <steps>")
        self.run(SETTLE_STEPS)
        start = time.perf_counter()
        loss = self.run(int(words[1]))
        seconds = time.perf_counter() - start
        if not math.isfinite(loss):
            return say("error", message="the loss is not finite")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.device.type == "cuda":
            peak = max(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count()))
        return say("done", seconds=repr(seconds), loss=repr(loss), peak_bytes=peak)


class Evaluator(Trainer):
    """Forward and loss in evaluation mode. Compiled: with batch normalisation folded into frozen weights."""

    def __init__(self, model, images, labels, compiled, memory_format, amp):
        super().__init__(model.eval(), images, labels, None, memory_format, amp)
        self.frozen = compiled
        if compiled:
            import torch._inductor.config

            torch._inductor.config.freezing = True
            # On CPUs max-autotune takes minutes per convolution.
            mode = compiled if self.device.type == "cuda" else "default"
            self.loss = torch.compile(self.loss_of, mode=mode)

    def run(self, steps):
        total = torch.zeros((), device=self.device)
        # torch.compile freezes weights under no_grad, not under inference_mode.
        with torch.no_grad() if self.frozen else torch.inference_mode():
            for _ in range(steps):
                i = self.next % len(self.images)
                self.next += 1
                total += self.loss(self.images[i], self.labels[i])
        return total.item() / steps


def mapped_library(pattern):
    """The file names of the loaded libraries that match `pattern`."""
    with open("/proc/self/maps") as maps:
        names = {os.path.basename(os.path.realpath(line.split()[-1])) for line in maps if re.search(pattern, line)}
    return ", ".join(sorted(names)) or "none"


def introduce(start_loss, device):
    dnnl = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", torch.__config__.show())
    libraries = {"version__torch's CUDA": torch.version.cuda, "version__torch's cuDNN": torch.backends.cudnn.version()} if device.type == "cuda" else {}
    say("ready", program="pytorch", start_loss=repr(start_loss), device=device, version__torch=torch.__version__, **libraries,
        **{"version__torch's oneDNN": dnnl.group(1) if dnnl else "none",
           "version__torch's BLAS": mapped_library(r"openblas|libmkl|libblis|libblas"),
           "version__python": sys.version.split()[0]})


def use_the_best_convolutions():
    """Lets cuDNN choose algorithms by measured time, as dp does. No TF32 in float32, as in dp without --tf32."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False


def wrap(model, options, gpus, device):
    if options.variant == "ddp":
        torch.distributed.init_process_group("nccl" if gpus else "gloo", init_method="file://" + os.environ["DP_BENCH_RENDEZVOUS"],
                                             rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if gpus else None)
    return nn.DataParallel(model, device_ids=gpus) if options.variant == "dataparallel" else model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", required=True, help="file written by bench_step --save-inputs")
    parser.add_argument("--variant", default="single", choices=["single", "dataparallel", "ddp"])
    parser.add_argument("--memory-format", default="contiguous", choices=["contiguous", "channels_last"])
    parser.add_argument("--model", default="mnist_convnet")
    parser.add_argument("--input", default="1,28,28", help="shape of a sample [%(default)s]")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="global batch size [%(default)s]")
    parser.add_argument("--batches", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2, help="threads of this process [%(default)s]")
    parser.add_argument("--gpus", default="", help="GPU ids; empty: the CPU")
    parser.add_argument("--images-on", default="host", choices=["host", "device"], help="device: resident bytes, augmented there [%(default)s]")
    parser.add_argument("--amp", default="off", choices=["off", "bf16", "fp16"], help="mixed precision, on GPUs [%(default)s]")
    parser.add_argument("--compile", metavar="MODE", nargs="?", const="max-autotune", help="use torch.compile in this mode [%(const)s]; with --inference it freezes weights")
    parser.add_argument("--inference", action="store_true", help="evaluate instead of training")
    options = parser.parse_args()
    if options.model not in MODELS:
        say("absent", reason=f"pytorch_step.py has no PyTorch model for {options.model}")
        return
    if options.variant == "dataparallel" and not options.gpus:
        say("absent", reason="nn.DataParallel needs GPUs")
        return
    torch.set_num_threads(options.threads)
    torch.manual_seed(42)
    rank, world = (int(os.environ.get(name, at)) for name, at in (("RANK", 0), ("WORLD_SIZE", 1)))
    gpus = [int(gpu) for gpu in options.gpus.split(",")] if options.gpus else []
    device = torch.device("cuda", gpus[rank % len(gpus)]) if gpus else torch.device("cpu")
    if gpus:
        use_the_best_convolutions()
    shape = tuple(int(size) for size in options.input.split(","))
    try:
        model = MODELS[options.model](shape, options.classes)
    except ImportError as error:
        say("absent", reason=f"{options.model} in PyTorch needs torchvision ({error})")
        return
    mine = (options.batch * rank // world, options.batch * (rank + 1) // world)
    images, labels = read_inputs(options.inputs, model, shape, options.batch, options.batches, mine, options.images_on)
    memory_format = torch.contiguous_format if options.memory_format == "contiguous" else torch.channels_last
    model = model.to(device, memory_format=memory_format)
    images = [x.to(device).contiguous(memory_format=memory_format) if x.dim() == 4 and x.is_floating_point() else x.to(device)
              for x in images]
    labels = [x.to(device) for x in labels]
    with torch.no_grad(), autocast(options.amp, device):
        start_loss = F.cross_entropy(model.eval()(normalized(images[0])), labels[0]).item()
    kind = Evaluator if options.inference else Trainer
    trainer = kind(wrap(model.train(), options, gpus, device), images, labels, options.compile, memory_format, options.amp)
    trainer.run(5 if options.compile else 1)  # starts all threads, compiles, captures graphs
    if options.threads > 1 and not gpus:
        spread_threads()
    introduce(start_loss, device)
    for line in sys.stdin:
        trainer.answer(line)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # report the reason in one line: PyTorch's last lines are often advice
        traceback.print_exc()
        say("error", message=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
        sys.exit(1)
