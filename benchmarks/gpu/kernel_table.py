#!/usr/bin/env python3
"""Registers and shared memory of the CUDA kernels, and modelled times of the layers of both networks.

    python3 benchmarks/gpu/kernel_table.py                     writes benchmarks/results/cuda-kernels.md
    python3 benchmarks/gpu/kernel_table.py --arch sm_75 --check   only looks for register spills; exit status 1 if any

Nothing runs on a GPU: the compiler reports registers and memory, and times are modelled from the constants below.
"""

import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNELS = os.path.join(ROOT, "kernels")

FLOPS = 67e12  # H200, float32 outside the tensor cores
BANDWIDTH = 4.3e12  # bytes a second, a copy measured on an H200
MULTIPROCESSORS = 132
TILES = {"128x128": (128, 128), "128x64": (128, 64), "64x64": (64, 64), "128x32": (128, 32), "32x32": (32, 32)}
STEP = 16  # in the depth (k), as in kernels/linear/cuda_gemm_tile.h


# ---- registers and memory


def demangled(name):
    text = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
    text = text.replace("dp::kernels::cuda::", "").replace("(anonymous namespace)::", "").removeprefix("void ")
    depth = 0  # the parameters begin at the first parenthesis outside of template arguments
    for i, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and i > 0:
            text = text[:i]
            break
    return re.sub(r"TileSize<(\d+), (\d+),[^>]*> ?", r"\1x\2", text).replace("(int)", "")


def compiled(path, arch, nvcc):
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++20", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "--expt-relaxed-constexpr",
                   f"-I{KERNELS}/device/cuda/native", f"-I{ROOT}", f"-I{ROOT}/engine/include", path, "-o", f"{folder}/out.cubin"]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"nvcc could not compile {path}:\n{run.stderr}")
    kernels, name, spills = [], None, 0
    for line in run.stderr.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = int(found[1]) + int(found[2])
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            kernels.append({"file": os.path.relpath(path, KERNELS), "name": demangled(name), "registers": int(found[1]),
                            "shared": int(shared[1]) if shared else 0, "spills": spills})
            name, spills = None, 0
    return kernels


def all_kernels(arch, nvcc):
    paths = sorted(path for path in glob.glob(f"{KERNELS}/**/*.cu", recursive=True) if "/native/" not in path)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [k for kernels in pool.map(lambda path: compiled(path, arch, nvcc), paths) for k in kernels]


# ---- layers


class Layer:
    """A convolution, or a linear layer (a convolution of one pixel), on `batch` images."""

    def __init__(self, name, batch, inputs, outputs, kernel=1, stride=1, size=1, out=1, padding=0):
        self.name, self.batch, self.inputs, self.outputs = name, batch, inputs, outputs
        self.kernel, self.stride, self.size, self.out, self.padding = kernel, stride, size, out, padding

    def cells(self):
        return self.batch * self.out * self.out

    def taps(self):
        return self.kernel * self.kernel * self.inputs

    def flop(self):
        return 2 * self.cells() * self.outputs * self.taps()

    def bytes(self):  # x, w and y once each
        return 4 * (self.batch * self.size**2 * self.inputs + self.taps() * self.outputs + self.cells() * self.outputs)

    def thin(self):  # as is_thin() of kernels/conv/cuda_thin.cu
        return self.inputs <= 3 and self.taps() <= 160

    def product(self, which):
        """([(rows, cols, depth) of each part], number of results), as in kernels/linear/cuda_gemm_choice.h."""
        if which == "forward":
            return [(self.cells(), self.outputs, self.taps())], self.cells() * self.outputs
        if which == "weights":
            return [(self.taps(), self.outputs, self.cells())], self.taps() * self.outputs

        def along(first):  # positions of x with this remainder modulo the stride, and the taps that read them
            tap = (first + self.padding) % self.stride
            return -(-(self.size - first) // self.stride), -(-max(0, self.kernel - tap) // self.stride)

        axis = [along(first) for first in range(self.stride)]
        return [(self.batch * h * w, self.inputs, kh * kw * self.outputs) for h, kh in axis for w, kw in axis], \
            self.batch * self.size**2 * self.inputs


def mnist_convnet(batch):
    return [Layer("conv1", batch, 1, 32, 3, 1, 28, 26), Layer("conv2", batch, 32, 64, 3, 1, 26, 24),
            Layer("fc1", batch, 9216, 128), Layer("fc2", batch, 128, 10)]


def resnet18(batch):
    layers = [Layer("conv1", batch, 3, 64, 3, 1, 32, 32, 1)]
    inputs, size = 64, 32
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            out = size // stride
            name = f"layer{stage}.{block}"
            layers.append(Layer(f"{name}.conv1", batch, inputs, width, 3, stride, size, out, 1))
            layers.append(Layer(f"{name}.conv2", batch, width, width, 3, 1, out, out, 1))
            if stride == 2:
                layers.append(Layer(f"{name}.downsample", batch, inputs, width, 1, 2, size, out))
            inputs, size = width, out
    return layers + [Layer("fc", batch, 512, 100)]


def choices(shapes):
    """(tile, splits) of each product, from the C++ function choose()."""
    def described(parts, results):
        rows, depth = max(p[0] for p in parts), -(-sum(p[2] for p in parts) // len(parts))
        return f"{rows} {parts[0][1]} {depth} {len(parts)} {results}"

    program = """
#include <iostream>
#include "kernels/linear/cuda_gemm_choice.h"
int main() {
  dp::kernels::cuda::GemmShape s;
  while (std::cin >> s.rows >> s.cols >> s.depth >> s.parts >> s.results) {
    const auto choice = dp::kernels::cuda::choose(s);
    std::cout << to_string(choice.tile) << ' ' << choice.splits << '\\n';
  }
}
"""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = f"{folder}/main.cpp", f"{folder}/main"
        with open(source, "w") as file:
            file.write(program)
        subprocess.run(["c++", "-std=c++20", f"-I{ROOT}", source, f"{KERNELS}/linear/cuda_gemm_choice.cpp", "-o", binary], check=True)
        text = "\n".join(described(*shape) for shape in shapes)
        lines = subprocess.run([binary], input=text, capture_output=True, text=True, check=True).stdout.split("\n")
    return [(line.split()[0], int(line.split()[1])) for line in lines if line]


def modelled(layer, which, tile, splits):
    """Seconds. Partial tiles count as full, the multiprocessor with the most blocks decides, and split products write
    and read partial sums."""
    if layer.thin() and which != "data":
        return max(layer.flop() / FLOPS, layer.bytes() / BANDWIDTH)
    parts, results = layer.product(which)
    height, width = TILES[tile]
    blocks = steps = 0
    for rows, cols, depth in parts:
        tiles = -(-rows // height) * -(-cols // width) * splits
        blocks, steps = blocks + tiles, steps + tiles * -(-(-(-depth // STEP)) // splits)
    longest = -(-blocks // MULTIPROCESSORS) * steps / blocks
    compute = longest * 2 * height * width * STEP / (FLOPS / MULTIPROCESSORS)
    traffic = layer.bytes() + (8 * results * splits if splits > 1 else 0)
    return max(compute, traffic / BANDWIDTH)


def micro(seconds):
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


def layer_table(title, layers):
    passes = [(layer, which) for i, layer in enumerate(layers) for which in ("forward", "data", "weights")
              if i > 0 or which != "data"]
    chosen = choices([layer.product(which) for layer, which in passes])
    lines = [f"## {title}", "",
             "| layer | pass | kernel | GFLOP | MB | floor µs | bound by | modelled µs | of floor |",
             "|---|---|---|---|---|---|---|---|---|"]
    floors = times = 0.0
    for (layer, which), (tile, splits) in zip(passes, chosen):
        compute, memory = layer.flop() / FLOPS, layer.bytes() / BANDWIDTH
        floor, time = max(compute, memory), modelled(layer, which, tile, splits)
        floors, times = floors + floor, times + time
        kernel = "thin" if layer.thin() and which != "data" else f"{tile} x {splits}" if splits > 1 else tile
        lines.append(f"| {layer.name} | {which} | {kernel} | {layer.flop() / 1e9:.3f} | {layer.bytes() / 1e6:.2f} | "
                     f"{micro(floor)} | {'arithmetic' if compute > memory else 'memory'} | {micro(time)} | "
                     f"{100 * floor / time:.0f} % |")
    lines.append(f"| all | | | | | {micro(floors)} | | {micro(times)} | {100 * floors / times:.0f} % |")
    return lines + [""]


# ---- passes between the layers: bound by memory


def result_bytes(layer):
    return 4 * layer.cells() * layer.outputs


def images_passes(batch, channels, size):
    """[(name, bytes)]. Pixels are read as bytes and written as floats."""
    return [("gather images", batch * channels * size * size * 5)]


def last_passes(batch, classes, layers, norms=0):
    """The loss reads and overwrites the logits. The update reads weights, gradients and momenta, and writes weights and
    momenta (SGD)."""
    parameters = sum(layer.taps() * layer.outputs for layer in layers) + norms
    return [("loss", 8 * batch * classes), ("update", 20 * parameters)]


def mnist_passes(batch):
    layers = mnist_convnet(batch)
    conv1, conv2, fc1 = (result_bytes(layer) for layer in layers[:3])
    pooled = conv2 // 4
    mask = pooled // 4  # a byte for each float
    return images_passes(batch, 1, 28) + [
        ("relu + max pool + dropout, forward", conv2 + pooled + mask),
        ("relu + max pool + dropout, backward", pooled + mask + conv2),
        ("relu of conv1, backward", 3 * conv1), ("relu of fc1, backward", 3 * fc1), ("dropout, forward", 2 * fc1),
        ("dropout, backward", 2 * fc1)] + last_passes(batch, 10, layers, norms=32 + 64 + 128 + 10)


def resnet_passes(batch):
    """As in engine/layers/norm.cpp: a normalisation whose result has two readers gets two gradients and writes their
    sum, masked by the ReLU."""
    layers = resnet18(batch)
    passes, last = {}, layers[-2]

    def add(what, amount):
        passes[what] = passes.get(what, 0) + amount

    for layer in layers[:-1]:
        size = result_bytes(layer)
        add("batch norm, moments", size)
        if layer.name.endswith("downsample"):
            add("batch norm, forward", 2 * size)
            add("batch norm, backward sums", 2 * size)
            add("batch norm, backward", 3 * size)
        elif layer.name.endswith(".conv1"):
            add("batch norm + relu, forward", 2 * size)
            add("batch norm + relu, backward sums", 3 * size)
            add("batch norm + relu, backward", 4 * size)
        else:  # a block's end, or the stem
            stem = layer.name == "conv1"
            add("batch norm + relu, forward" if stem else "batch norm + addition + relu, forward", (2 if stem else 3) * size)
            add("batch norm (+ addition) + relu, backward sums", (4 if layer is last else 5) * size)
            add("batch norm (+ addition) + relu, backward", 3 * size)
    pooled = result_bytes(last)
    small = pooled // (last.out * last.out)
    norms = sum(2 * layer.outputs for layer in layers[:-1]) + layers[-1].outputs
    return images_passes(batch, 3, 32) + list(passes.items()) + [
        ("average pool, forward", pooled + small), ("average pool, backward", pooled + small)] + \
        last_passes(batch, 100, layers, norms)


def memory_table(title, passes):
    lines = [f"### {title}: between the layers", "", "| pass | MB | floor µs |", "|---|---|---|"]
    lines += [f"| {what} | {amount / 1e6:.2f} | {micro(amount / BANDWIDTH)} |" for what, amount in passes]
    total = sum(amount for _, amount in passes)
    lines.append(f"| all | {total / 1e6:.2f} | {micro(total / BANDWIDTH)} |")
    return lines + [""]


def choice_table(batch):
    def cells(layer, first):
        for which in ("forward", "data", "weights"):
            if which == "data" and first:
                yield "-"
            elif layer.thin() and which != "data":
                yield "thin"
            else:
                tile, splits = choices([layer.product(which)])[0]
                yield f"{tile} x {splits}" if splits > 1 else tile

    lines = ["| network | layer | forward | data gradient | weight gradient |", "|---|---|---|---|---|"]
    for network, layers in (("mnist_convnet", mnist_convnet(batch)), ("resnet18, 32x32", resnet18(batch))):
        seen = []  # each shape once
        for i, layer in enumerate(layers):
            shape = {**vars(layer), "name": None}
            if shape not in seen:
                seen.append(shape)
                lines.append(f"| {network} | {layer.name} | {' | '.join(cells(layer, i == 0))} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90", help="GPU architecture [%(default)s]")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--check", action="store_true", help="only look for register spills, write nothing")
    parser.add_argument("--output", default=os.path.join(ROOT, "benchmarks", "results", "cuda-kernels.md"))
    parser.add_argument("--choices", type=int, metavar="BATCH", help="only print the kernel of each layer at this batch size")
    args = parser.parse_args()
    if args.choices:
        print("\n".join(choice_table(args.choices)))
        return 0

    kernels = all_kernels(args.arch, args.nvcc)
    spilling = [k for k in kernels if k["spills"]]
    for k in spilling:
        print(f"{k['file']}: {k['name']} spills {k['spills']} bytes on {args.arch}", file=sys.stderr)
    if not args.check:
        version = subprocess.run([args.nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        release = re.search(r"release [\d.]+, V([\d.]+)", version)[1]
        lines = ["# CUDA kernels: registers, memory, and modelled times", "",
                 "Written by `python3 benchmarks/gpu/kernel_table.py`. **Nothing here was measured on a GPU**: registers and "
                 f"shared memory are those of nvcc {release} for {args.arch}, times are modelled.", "",
                 f"Constants: {FLOPS / 1e12:.0f} TFLOP/s in float32 and {BANDWIDTH / 1e12:.1f} TB/s (H200), "
                 f"{MULTIPROCESSORS} multiprocessors. *Floor*: the larger of arithmetic and of input, weights and output "
                 "moved once. *Modelled*: partial tiles count as full, the multiprocessor with the most blocks determines the time, and "
                 "partial sums of a split product are written and read. Not modelled: a block's distance from the peak "
                 "(shared memory, latency) and launches; the thin kernels have their floor. So it is a lower bound and "
                 "shows where tiles fit badly. *128x64 x 4*: tiles of 128x64, the reduction in 4 ranges. *Between the layers*: "
                 "the passes of one step that are bound by memory; the bytes that each kernel reads and writes, once "
                 "each. Small merges of statistics are not included.", "",
                 "## Kernels", "", "| file | kernel | registers | shared bytes | spilled bytes |", "|---|---|---|---|---|"]
        lines += [f"| {k['file']} | `{k['name']}` | {k['registers']} | {k['shared']} | {k['spills']} |" for k in kernels]
        lines.append("")
        for title, layers, passes in (
                ("mnist_convnet, batch 64", mnist_convnet(64), mnist_passes(64)),
                ("mnist_convnet, batch 1024", mnist_convnet(1024), mnist_passes(1024)),
                ("resnet18 on 32x32 images, batch 512", resnet18(512), resnet_passes(512)),
                ("resnet18 on 32x32 images, batch 64", resnet18(64), resnet_passes(64))):
            lines += layer_table(title, layers) + memory_table(title, passes)
        with open(args.output, "w") as file:
            file.write("\n".join(lines).rstrip() + "\n")
        print(f"{len(kernels)} kernels: {args.output}")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
