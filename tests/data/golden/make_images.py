#!/usr/bin/env python3
"""Draws small images into tests/fuzz/image_corpus. Decodes, resizes and crops them with Pillow and torchvision, and
writes the results to images.safetensors.

usage: make_images.py     (needs Debian's python3-torchvision, and Pillow up to version 12, such as python3-pil: later
                           versions filter in another order)

Per image: `<name>.rgb` (H,W,3), decoded; `<name>.eval` (3,S,S), Resize and CenterCrop; `<name>.crop<k>` (3,S,S),
resized_crop of `<name>.box<k>` (left, top, width, height). Other interpolations: `<name>.eval_<mode>`, with timm's size
before the crop, and `<name>.crop0_<mode>`. prepared.safetensors has what networks without `resizing` get: `<name>.grey`
(20,28), of convert("L"), and `<name>.plain` (3,32,24), both resized without a crop.
"""
import io
import math
import pathlib
import random
import sys

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "golden"))
import safetensors_file  # noqa: E402

safetensors_file.TYPES["uint8"] = "U8"
SIDE = 21  # shorter side 24
BILINEAR = InterpolationMode.BILINEAR
MODES = {"nearest": InterpolationMode.NEAREST, "bicubic": InterpolationMode.BICUBIC}
CROP_PCT = {"eval_nearest": 1.0, "eval_bicubic": 0.95, "eval_bicubic_070": 0.7}


def draw(width, height, seed):
    """An image of gradients, rings, an edge and a little noise: (height, width, 4) bytes, alpha last."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    noise = np.random.default_rng(seed).integers(0, 24, (height, width, 4))
    rings = 100 + 100 * np.sin(((x - width / 3) ** 2 + (y - height / 2) ** 2) / 40)
    edge = np.where(x + y > (width + height) / 2, 200, 20)
    planes = np.stack([x * 255 / width, rings, edge, y * 255 / height], axis=-1)
    return np.clip(planes + noise, 0, 255).astype(np.uint8)


def encoded(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def files():
    def rgb(w, h, seed):
        return Image.fromarray(draw(w, h, seed)[..., :3])

    yield "jpeg_420", encoded(rgb(45, 37, 1), "JPEG", quality=90)
    yield "jpeg_422", encoded(rgb(50, 33, 2), "JPEG", quality=70, subsampling=1)
    yield "jpeg_444", encoded(rgb(40, 40, 3), "JPEG", quality=95, subsampling=0, icc_profile=b"no profile at all")
    yield "jpeg_progressive", encoded(rgb(37, 52, 4), "JPEG", quality=85, progressive=True)
    yield "jpeg_grey", encoded(rgb(33, 41, 5).convert("L"), "JPEG", quality=80)
    yield "jpeg_cmyk", encoded(Image.fromarray(draw(41, 36, 6), "CMYK"), "JPEG", quality=90)
    yield "jpeg_tiny", encoded(rgb(3, 2, 7), "JPEG", quality=95)
    yield "jpeg_wide", encoded(rgb(140, 20, 8), "JPEG", quality=60)
    yield "jpeg_large", encoded(rgb(230, 310, 9), "JPEG", quality=30)
    yield "png_rgb", encoded(rgb(39, 34, 10), "PNG")
    yield "png_rgba", encoded(Image.fromarray(draw(35, 38, 11), "RGBA"), "PNG")
    yield "png_grey", encoded(rgb(36, 45, 12).convert("L"), "PNG")
    yield "png_grey_alpha", encoded(Image.fromarray(draw(30, 33, 13), "RGBA").convert("LA"), "PNG")
    yield "png_palette", encoded(rgb(44, 31, 14).quantize(200), "PNG")
    yield "png_palette_clear", encoded(rgb(31, 44, 15).quantize(12), "PNG", transparency=3)
    yield "png_one_bit", encoded(rgb(34, 34, 16).convert("1"), "PNG")
    yield "webp_lossy", encoded(rgb(43, 35, 18), "WEBP", quality=80)
    yield "webp_lossy_alpha", encoded(Image.fromarray(draw(36, 40, 19), "RGBA"), "WEBP", quality=60)
    yield "webp_lossless", encoded(rgb(37, 42, 20), "WEBP", lossless=True)
    yield "webp_lossless_alpha", encoded(Image.fromarray(draw(33, 39, 21), "RGBA"), "WEBP", lossless=True, exact=True)


def planes(image):
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def add_other_modes(tensors, name, image):
    for key, crop_pct in CROP_PCT.items():
        resized = F.resize(image, math.floor(SIDE / crop_pct), MODES[key.split("_")[1]])
        tensors[f"{name}.{key}"] = planes(F.center_crop(resized, SIDE))
    for mode, interpolation in MODES.items():
        if f"{name}.box0" in tensors:
            left, top, w, h = (int(value) for value in tensors[f"{name}.box0"])
            tensors[f"{name}.crop0_{mode}"] = planes(
                F.resized_crop(image, top, left, h, w, [SIDE, SIDE], interpolation)
            )


def write_prepared(tensors):
    prepared = {}
    for key in [key for key in tensors if key.endswith(".rgb")]:
        name, image = key[:-4], Image.fromarray(tensors[key])
        prepared[f"{name}.grey"] = np.asarray(image.convert("L").resize((28, 20), Image.Resampling.BILINEAR))
        prepared[f"{name}.plain"] = planes(image.resize((24, 32), Image.Resampling.BILINEAR))
    path = pathlib.Path(__file__).with_name("prepared.safetensors")
    safetensors_file.write(path, prepared)
    print(f"{path}: {path.stat().st_size} bytes, {len(prepared)} tensors")


def main():
    corpus = pathlib.Path(__file__).resolve().parents[2] / "fuzz/image_corpus"
    corpus.mkdir(exist_ok=True)
    draws = random.Random(17)
    tensors = {}
    for name, blob in files():
        image = Image.open(io.BytesIO(blob)).convert("RGB")
        width, height = image.size
        (corpus / name).write_bytes(blob)
        if width * height < 5000:
            tensors[f"{name}.rgb"] = np.asarray(image)
        resized = F.resize(image, SIDE * 256 // 224, BILINEAR)
        tensors[f"{name}.eval"] = planes(F.center_crop(resized, SIDE))
        for k in range(0 if name.startswith("webp") else 2):
            w, h = draws.randint(1, width), draws.randint(1, height)
            left, top = draws.randint(0, width - w), draws.randint(0, height - h)
            tensors[f"{name}.box{k}"] = np.array([left, top, w, h], np.int64)
            tensors[f"{name}.crop{k}"] = planes(F.resized_crop(image, top, left, h, w, [SIDE, SIDE], BILINEAR))
        add_other_modes(tensors, name, image)
    path = pathlib.Path(__file__).with_name("images.safetensors")
    safetensors_file.write(path, tensors)
    print(f"{path}: {path.stat().st_size} bytes, {len(tensors)} tensors")
    write_prepared(tensors)


if __name__ == "__main__":
    main()
