#!/usr/bin/env python3
"""Trains airbench94's network on CIFAR-10 in PyTorch with the recipe of `dp_train --model cifar_speed`
(models/registry.cpp), and prints the test accuracy and the minutes after each epoch:

    python3 benchmarks/programs/pytorch_cifar_speed.py DIR --epochs 10 --threads 2

DIR contains cifar-10-batches-bin. The time includes the augmentation, which takes tensors of whole batches, and the
evaluations, as dp_train's does; reading the files is not measured.
"""

import argparse
import pathlib
import time

import torch
import torch.nn.functional as F

import pytorch_step

BATCH, RATE, MOMENTUM, DECAY, SMOOTHING, PADDING, WARM_UP, BIAS_FACTOR = 128, 0.19, 0.85, 1.3e-3, 0.2, 2, 0.23, 64
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def read(folder, names):
    rows = torch.cat([torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=torch.uint8) for name in names])
    rows = rows.view(-1, 3073)
    images = rows[:, 1:].view(-1, 3, 32, 32).float() / 255
    images = (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    return images, rows[:, 0].long()


def whitening(images):
    """As cifar_speed_whitening(): eigenvectors of the second moments of 2x2 patches, and their negatives."""
    patches = F.unfold(images[:5000], 2).transpose(1, 2).reshape(-1, 12).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (vectors / (values + 5e-4).sqrt()).T.float().view(12, 3, 2, 2)
    return torch.cat([filters, -filters])


def augmented(images, first_flip, epoch, black):
    """A random crop of the padded images, and a flip in every other epoch."""
    size = images.shape[-1]
    padded = torch.empty(len(images), 3, size + 2 * PADDING, size + 2 * PADDING)
    padded[:] = black
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    result = torch.empty_like(images)
    for i, (row, column) in enumerate(torch.randint(0, 2 * PADDING + 1, (len(images), 2)).tolist()):
        image = padded[i, :, row : row + size, column : column + size]
        result[i] = image.flip(-1) if (int(first_flip[i]) + epoch) % 2 else image
    return result.contiguous(memory_format=torch.channels_last)


def rate_factor(epoch, step_epochs, epochs):
    warm_up = WARM_UP * epochs
    if epoch + step_epochs < warm_up:
        return (epoch + step_epochs) / warm_up
    return 1 - min(max((epoch - warm_up) / (epochs - warm_up), 0), 1)


def accuracy(net, images, labels):
    net.eval()
    with torch.no_grad():
        hits = sum(
            (net(x.contiguous(memory_format=torch.channels_last)).argmax(1) == y).sum().item()
            for x, y in zip(images.split(BATCH), labels.split(BATCH))
        )
    net.train()
    return 100 * hits / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    folder = arguments.folder / "cifar-10-batches-bin"
    images, labels = read(folder, [f"data_batch_{i}.bin" for i in range(1, 6)])
    test_images, test_labels = read(folder, ["test_batch.bin"])

    net = pytorch_step.CifarSpeed((3, 32, 32), 10).to(memory_format=torch.channels_last)
    net.whiten.weight.data.copy_(whitening(images))
    net.whiten.weight.requires_grad_(False)
    biases = [p for name, p in net.named_parameters() if "norm" in name and name.endswith("bias")]
    for name, parameter in net.named_parameters():
        if "norm" in name and name.endswith("weight"):
            parameter.requires_grad_(False)
    matrices = [p for p in net.parameters() if p.requires_grad and p.dim() > 1]
    groups = [
        {"params": matrices, "weight_decay": DECAY, "factor": 1},
        {"params": biases, "weight_decay": 0, "factor": BIAS_FACTOR},
        {"params": [net.whiten.bias], "weight_decay": 0, "factor": 1},
    ]
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, nesterov=True)
    black = (-torch.tensor(MEAN) / torch.tensor(DEVIATION)).view(3, 1, 1)
    first_flip = torch.randint(0, 2, (len(labels),))
    steps = (len(labels) + BATCH - 1) // BATCH
    begin, processor = time.monotonic(), time.process_time()
    for epoch in range(arguments.epochs):
        for step, rows in enumerate(torch.randperm(len(labels)).split(BATCH)):
            factor = rate_factor(epoch + step / steps, 1 / steps, arguments.epochs)
            for group in optimizer.param_groups:
                group["lr"] = RATE * factor * group["factor"]
            logits = net(augmented(images[rows], first_flip[rows], epoch, black))
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[rows], label_smoothing=SMOOTHING).backward()
            optimizer.step()
        result = accuracy(net, test_images, test_labels)
        minutes = (time.monotonic() - begin) / 60
        cpu = (time.process_time() - processor) / 60
        print(f"epoch {epoch + 1}: Acc@1 {result:.2f}, {minutes:.1f} min, {cpu:.1f} min of processor time", flush=True)


if __name__ == "__main__":
    main()
