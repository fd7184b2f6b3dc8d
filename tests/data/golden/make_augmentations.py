#!/usr/bin/env python3
"""Writes what torchvision.transforms.v2 makes of small images to augmentations.safetensors.

usage: make_augmentations.py     (needs torchvision; the committed file is of 0.29)

`image|<name>` (C,H,W). A result is `<name>|<operation>|<parameters, separated by commas>`: of a function, such as
`brightness|1.9`, or of an operation of the policies, such as `ShearX|-0.3,bilinear`. `magnitudes|<policy>|<operation>`:
the magnitudes of all bins for images of 224 rows and 200 columns.
"""
import pathlib
import sys

import numpy as np
import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "golden"))
import safetensors_file  # noqa: E402

safetensors_file.TYPES["uint8"] = "U8"
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}


def draw(channels, height, width, seed):
    """Gradients, rings, an edge and noise; one colour in a corner, so that channels are equal there."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    rings = 100 + 100 * np.sin(((x - width / 3) ** 2 + (y - height / 2) ** 2) / 40)
    planes = np.stack([x * 255 / width, rings, np.where(x + y > (width + height) / 2, 200, 20)])[:channels]
    planes = planes + np.random.default_rng(seed).integers(0, 24, planes.shape)
    planes[:, : height // 4, : width // 4] = 77
    return np.clip(planes, 0, 255).astype(np.uint8)


def images():
    yield "colour", draw(3, 21, 26, 1)
    yield "even", draw(3, 20, 20, 2)
    yield "grey", draw(1, 18, 18, 3)
    yield "dull", (100 + draw(3, 13, 15, 4) // 16).astype(np.uint8)
    yield "noise", np.random.default_rng(5).integers(0, 256, (3, 19, 20)).astype(np.uint8)
    yield "flat", np.full((3, 6, 6), 131, np.uint8)
    yield "tiny", draw(3, 2, 5, 6)


def functions():
    for factor in (0.0, 0.1, 0.55, 1.0, 1.27, 1.9):
        yield f"brightness|{factor}", lambda image, f=factor: F.adjust_brightness(image, f)
        yield f"contrast|{factor}", lambda image, f=factor: F.adjust_contrast(image, f)
        yield f"saturation|{factor}", lambda image, f=factor: F.adjust_saturation(image, f)
        yield f"sharpness|{factor}", lambda image, f=factor: F.adjust_sharpness(image, f)
    for turns in (-0.5, -0.123, 0.05, 0.3, 0.5):
        yield f"hue|{turns}", lambda image, t=turns: F.adjust_hue(image, t)
    for bits in (0, 3, 8):
        yield f"posterize|{bits}", lambda image, b=bits: F.posterize(image, b)
    for threshold in (0.0, 127.5, 200.0):
        yield f"solarize|{threshold}", lambda image, t=threshold: F.solarize(image, t)
    yield "autocontrast|", F.autocontrast
    yield "equalize|", F.equalize
    yield "invert|", F.invert
    for mode, by in MODES.items():  # angle, shear x, shear y, right, down, about the corner
        for angle, shear_x, shear_y, right, down, corner in (
            (30, 0, 0, 0, 0, 0), (-143.7, 0, 0, 0, 0, 0), (90, 0, 0, 0, 0, 0), (0, 11, 0, 0, 0, 1), (0, 0, -17, 0, 0, 1),
            (0, 0, 0, 5, -3, 0), (0, 0, 0, 2.5, 1.25, 0), (12.5, 9, -8, 3, 4, 0)):
            yield f"affine|{angle},{shear_x},{shear_y},{right},{down},{corner},{mode}", (
                lambda image, a=angle, s=(shear_x, shear_y), t=(right, down), c=corner, m=by: F.affine(
                    image, float(a), list(t), 1.0, list(s), interpolation=m, center=[0, 0] if c else None))
    for top, left, height, width in ((0, 0, 2, 3), (1, 2, 1, 3)):
        yield f"erase|{left},{top},{width},{height}", (
            lambda image, b=(top, left, height, width): F.erase(image, *b, torch.tensor(0, dtype=image.dtype)))


class Scripted(v2.AugMix):
    """AugMix with given weights and one given operation in each chain."""

    OPERATIONS = (("Solarize", 0.5), ("Equalize", None), ("Posterize", 3.0))
    WEIGHTS = ([0.3, 0.7], [0.2, 0.5, 0.3])

    def __init__(self):
        super().__init__(severity=1, chain_depth=1)
        self.operations, self.weights = iter(self.OPERATIONS), iter(self.WEIGHTS)

    def _get_random_item(self, space):
        name, magnitude = next(self.operations)
        return name, (lambda *_: None if magnitude is None else torch.tensor([magnitude]), False)

    def _sample_dirichlet(self, params):
        return torch.tensor([next(self.weights)])


def operations():
    """Of all policies, forwards and backwards."""
    policy = v2.RandAugment()
    for name, magnitudes in {"ShearX": (0.3, -0.99), "ShearY": (0.09, -0.3), "TranslateX": (4.27, -9.0),
                             "TranslateY": (13.9, -0.5), "Rotate": (9.0, -30.0, 90.0, -135.0), "Brightness": (0.27, -0.99),
                             "Color": (0.27, -0.9), "Contrast": (0.27, -0.9), "Sharpness": (0.27, -0.9),
                             "Posterize": (7.0, 2.0), "Solarize": (1.0, 0.7000000476837158, 0.0),
                             "AutoContrast": (0.0,), "Equalize": (0.0,), "Identity": (0.0,)}.items():
        for magnitude in magnitudes:
            for mode, by in MODES.items() if name[:5] in ("Shear", "Trans", "Rotat") else [("bilinear", MODES["bilinear"])]:
                yield f"{name}|{magnitude},{mode}", (lambda image, n=name, m=magnitude, i=by:
                    policy._apply_image_or_video_transform(image, n, m, i, policy._fill))


def main():
    torch.set_num_threads(1)
    tensors = {}
    for name, planes in images():
        image = torch.from_numpy(planes)
        tensors[f"image|{name}"] = planes
        for what, function in functions():
            tensors[f"{name}|{what}"] = function(image).numpy()
        if name in ("colour", "even", "grey"):
            for what, function in operations():
                tensors[f"{name}|{what}"] = function(image).numpy()
            tensors[f"{name}|mix|0.3,0.2,0.5,0.3"] = Scripted()(image).numpy()
    for policy, bins in (("ra", 31), ("ta_wide", 31), ("augmix", 10)):
        kind = {"ra": v2.RandAugment, "ta_wide": v2.TrivialAugmentWide, "augmix": v2.AugMix}[policy]
        for name, (magnitudes, signed) in kind._AUGMENTATION_SPACE.items():
            values = magnitudes(bins, 224, 200)
            values = np.zeros(bins) if values is None else values.numpy().astype(np.float64)
            tensors[f"magnitudes|{policy}|{name}|{'signed' if signed else 'unsigned'}"] = values
    path = pathlib.Path(__file__).with_name("augmentations.safetensors")
    safetensors_file.write(path, tensors)
    print(f"{path}: {path.stat().st_size} bytes, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
