#!/usr/bin/python3
"""Writes layers.safetensors and mnist_steps.safetensors beside itself. Needs PyTorch (Debian: python3-torch)."""

import pathlib

import golden_layers
import golden_mnist
import philox
import safetensors_file

if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent
    philox.check_known_answer()
    safetensors_file.write(here / "layers.safetensors", golden_layers.all_layers())
    steps = golden_mnist.all_steps()
    safetensors_file.write(here / "mnist_steps.safetensors", steps)
    for name, value in steps.items():
        if "float32_error" in name or name.endswith("loss"):
            print(name, value)
