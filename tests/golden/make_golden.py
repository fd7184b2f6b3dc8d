#!/usr/bin/python3
"""Writes the .safetensors files beside itself. Needs PyTorch and torchvision (Debian: python3-torchvision)."""

import pathlib

import golden_functions
import golden_layers
import golden_mnist
import golden_norm
import golden_optimizers
import golden_resnet
import golden_windows
import philox
import safetensors_file

if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent
    philox.check_known_answer()
    safetensors_file.write(here / "layers.safetensors", golden_layers.all_layers())
    safetensors_file.write(here / "functions.safetensors", golden_functions.all_functions())
    safetensors_file.write(here / "windows.safetensors", golden_windows.all_convolutions())
    safetensors_file.write(here / "residual_layers.safetensors", golden_norm.all_layers())
    for network in golden_resnet.CASES:
        safetensors_file.write(here / f"{network}.safetensors", golden_resnet.all_cases(network))
    steps = golden_mnist.all_steps()
    safetensors_file.write(here / "mnist_steps.safetensors", steps)
    optimizers = golden_optimizers.all_runs()
    safetensors_file.write(here / "optimizers.safetensors", optimizers)
    for name, value in (steps | optimizers).items():
        if "float32_error" in name or name.endswith("loss"):
            print(name, value)
