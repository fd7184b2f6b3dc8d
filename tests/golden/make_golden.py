#!/usr/bin/python3
"""Writes the .safetensors files beside itself: make_golden.py [name...], or all of them. Needs PyTorch and torchvision
(Debian: python3-torchvision)."""

import functools
import pathlib
import sys

import golden_decoder
import golden_functions
import golden_layers
import golden_losses
import golden_mnist
import golden_models
import golden_norm
import golden_optimizers
import golden_pools
import golden_resnet
import golden_windows
import philox
import safetensors_file


def of_network(network):
    steps = golden_models.all_steps(network) if network in golden_models.SMALL else {}
    return golden_resnet.all_cases(network) | steps


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent
    philox.check_known_answer()
    files = {
        "layers": golden_layers.all_layers,
        "functions": golden_functions.all_functions,
        "losses": golden_losses.all_losses,
        "windows": golden_windows.all_convolutions,
        "pools": golden_pools.all_pools,
        "decoder": golden_decoder.all_layers,
        "residual_layers": golden_norm.all_layers,
        "mnist_steps": golden_mnist.all_steps,
        "optimizers": golden_optimizers.all_runs,
    } | {network: functools.partial(of_network, network) for network in golden_resnet.CASES}
    for name in sys.argv[1:] or files:
        tensors = files[name]()
        safetensors_file.write(here / f"{name}.safetensors", tensors)
        for tensor, value in tensors.items():
            if "float32_error" in tensor or tensor.endswith("loss") and name == "mnist_steps":
                print(tensor, value)
