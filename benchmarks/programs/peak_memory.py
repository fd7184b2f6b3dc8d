#!/usr/bin/env python3
"""Compares the peak resident memory of dp_train and of PyTorch, training ResNet18 on CIFAR-sized images. Each runs in
its own process, with the same batch size and number of steps, and with the images in memory. dp_train evaluates at the
end, PyTorch does not. The libraries' own pages count on both sides."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))

PYTORCH = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from pytorch_step import MODELS
batch, steps, layout = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(int(sys.argv[5]))
model = MODELS["resnet18"]((3, 32, 32), 100).to(memory_format=getattr(torch, layout))
images = torch.randn(4 * batch, 3, 32, 32)
labels = torch.randint(100, (4 * batch,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(steps):
    at = step % 4 * batch
    x = images[at:at + batch].contiguous(memory_format=getattr(torch, layout))
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(x), labels[at:at + batch]).backward()
    optimizer.step()
"""


def peak(command, environment=None):
    """Runs the command and returns its peak resident memory in MiB."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{command[0]} ended with status {status}")
    return usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dp-train", default=os.path.join(FOLDER, "../../build/release/apps/dp_train/dp_train"))
    parser.add_argument("--python", default="/usr/bin/python3")
    options = parser.parse_args()
    results = {}
    for replicas in (1, options.threads):
        with tempfile.TemporaryDirectory() as folder:
            results[f"dp_train, {replicas} replicas"] = peak(
                [options.dp_train, "--model", "resnet18", "--dataset", "synthetic", "-b", str(options.batch), "--cpu", str(replicas),
                 "--threads-per-replica", str(options.threads // replicas), "--max-steps", str(options.steps), "--output-dir", folder])
    for layout in ("contiguous_format", "channels_last"):
        results[f"pytorch {layout}"] = peak(
            [options.python, "-c", PYTORCH, FOLDER, str(options.batch), str(options.steps), layout, str(options.threads)],
            os.environ | {"OMP_NUM_THREADS": str(options.threads)})
    for name, size in results.items():
        print(f"{name:32} {size:8.0f} MiB", file=sys.stderr)
    print(json.dumps({"batch": options.batch, "steps": options.steps, "threads": options.threads, "peak_mib": results}))


if __name__ == "__main__":
    main()
