#!/usr/bin/env python3
"""Images per second of torchvision's resnet18 in ONNX Runtime on CPUs, to compare with dp::Predictor.

usage: onnxruntime_predict.py [--input 3,32,32] [--batch 64] [--threads 2] [--seconds 3] [--rounds 5] [--dp BINARY]

Exports the network by torch.onnx with a fixed batch, and times onnxruntime's CPU provider with all graph
optimisations. An input of 3,32,32 has CIFAR's stem: a 3x3 convolution of stride 1, no max-pooling. --dp names
`predict_rate`, the program beside this one: rounds then alternate between the two, and the ratio of dp's rate to ONNX
Runtime's is printed, as the median of the rounds. Needs torch, torchvision, onnx and onnxruntime.
"""
import argparse
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime
import torch
import torchvision


def network(shape):
    model = torchvision.models.resnet18(num_classes=1000 if shape[1] > 32 else 10)
    if shape[1] <= 32:
        model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model.eval()


def session(shape, batch, threads):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.onnx")
        torch.onnx.export(network(shape), (torch.zeros(batch, *shape),), path, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def rate(run, batch, seconds):
    """Images per second: of the median call."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return batch / statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", default="3,32,32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dp")
    given = parser.parse_args()
    shape = [int(size) for size in given.input.split(",")]
    own = session(shape, given.batch, given.threads)
    name = own.get_inputs()[0].name
    images = np.random.default_rng(1).standard_normal((given.batch, *shape)).astype(np.float32)
    rate(lambda: own.run(None, {name: images}), given.batch, 0.5)
    ratios = []
    for _ in range(given.rounds):
        theirs = rate(lambda: own.run(None, {name: images}), given.batch, given.seconds)
        line = f"onnxruntime {onnxruntime.__version__}: {theirs:.1f} images/s"
        if given.dp:
            command = [given.dp, given.input, str(given.batch), str(given.threads), str(given.seconds)]
            ours = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            ratios.append(ours / theirs)
            line += f"; dp: {ours:.1f} images/s, ratio {ratios[-1]:.2f}"
        print(line, flush=True)
    if ratios:
        print(f"{given.input}, batch {given.batch}, {given.threads} threads: median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
