#!/usr/bin/env python3
"""First measurements on a GPU that nobody has measured yet, by PyTorch alone: what copies, graphs and events cost, and how fast cuDNN's
convolutions are on the shapes of ResNet18. They say what there is to gain before anything of ours has run.

    ./dev bench gpu_first --out benchmarks/results/first-h200-2026-11
"""

import argparse
import json
import pathlib
import statistics
import sys

# channels, size, out channels, kernel, stride, how many a step has; the 3x3 stem on 32x32
SHAPES = [(3, 32, 64, 3, 1, 1), (64, 32, 64, 3, 1, 4), (64, 32, 128, 3, 2, 1), (128, 16, 128, 3, 1, 3), (64, 32, 128, 1, 2, 1), (128, 16, 256, 3, 2, 1),
          (256, 8, 256, 3, 1, 3), (128, 16, 256, 1, 2, 1), (256, 8, 512, 3, 2, 1), (512, 4, 512, 3, 1, 3), (256, 8, 512, 1, 2, 1)]
ROUNDS = 7


def microseconds(torch, work, repeats):
    """The median over the rounds of one `work()`, by events around `repeats` of them."""
    times = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / repeats)
    return statistics.median(times[1:])


def copies(torch):
    """GB/s: within the device (read and written bytes counted), and to it from pinned and from pageable memory."""
    size = 256 << 20
    here, there = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    pinned, pageable = torch.empty(size, dtype=torch.uint8).pin_memory(), torch.empty(size, dtype=torch.uint8)
    yield "copy on the device, GB/s", 2 * size / microseconds(torch, lambda: there.copy_(here), 10) * 1e-3
    yield "pinned memory to the device, GB/s", size / microseconds(torch, lambda: there.copy_(pinned, non_blocking=True), 3) * 1e-3
    yield "device to pinned memory, GB/s", size / microseconds(torch, lambda: pinned.copy_(here, non_blocking=True), 3) * 1e-3
    yield "pageable memory to the device, GB/s", size / microseconds(torch, lambda: there.copy_(pageable), 2) * 1e-3


def graphs(torch):
    """What a small kernel costs launched by itself and as a node of a graph, and an event that another stream waits for."""
    x = torch.zeros(32, device="cuda")
    nodes = 200
    yield "a kernel launched by PyTorch, us", microseconds(torch, lambda: x.add_(1), nodes)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        for _ in range(nodes):
            x.add_(1)
    yield "a kernel as a node of a graph, us", microseconds(torch, graph.replay, 5) / nodes

    def forth_and_back():
        event = torch.cuda.Event()
        event.record()
        side.wait_event(event)
        back = torch.cuda.Event()
        back.record(side)
        torch.cuda.current_stream().wait_event(back)
        x.add_(1)

    yield "a kernel behind events to a second stream and back, us", microseconds(torch, forth_and_back, nodes)


def convolutions(torch, batches):
    """Microseconds and TFLOP/s of forward, data and weight gradient, channels last, the algorithm chosen by cuDNN's own timing."""
    torch.backends.cudnn.benchmark = True
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for batch in batches:
            for channels, size, out, kernel, stride, times in SHAPES:
                x = torch.randn(batch, channels, size, size, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
                w = torch.randn(out, channels, kernel, kernel, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
                y = torch.conv2d(x, w, None, stride, kernel // 2)
                dy = torch.randn_like(y)
                flops = 2.0 * y.numel() * channels * kernel * kernel

                def backward(mask, x=x, w=w, dy=dy, stride=stride, kernel=kernel):
                    torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1, mask)

                row = {"type": kind, "batch": batch, "shape": f"{channels}x{size}x{size} to {out}, {kernel}x{kernel}, stride {stride}", "times": times}
                for name, work in (("forward", lambda x=x, w=w, stride=stride, kernel=kernel: torch.conv2d(x, w, None, stride, kernel // 2)),
                                   ("data", lambda: backward([True, False, False])), ("weights", lambda: backward([False, True, False]))):
                    work()
                    us = microseconds(torch, work, 20)
                    row[name + "_us"], row[name + "_tflops"] = us, flops / us * 1e-6
                yield row


def markdown(record):
    lines = ["# First measurements", "", f"`{record['command']}`", "", *(f"- {key}: {value}" for key, value in record["facts"].items()), "",
             "| what | |", "|---|---|", *(f"| {name} | {value:.2f} |" for name, value in record["costs"].items()), "",
             "Convolutions, channels last: us (TFLOP/s), medians of seven rounds.", "", "| type | batch | shape | in a step | forward | data | weights |",
             "|---|---|---|---|---|---|---|"]
    for row in record["convolutions"]:
        cells = [f"{row[name + '_us']:.1f} ({row[name + '_tflops']:.0f})" for name in ("forward", "data", "weights")]
        lines.append(f"| {row['type']} | {row['batch']} | {row['shape']} | {row['times']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="256,1024")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-first"), help="OUT.json and OUT.md are written")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"gpu_first: PyTorch is not installed for {sys.executable} ({error})")
    if not torch.cuda.is_available():
        sys.exit("gpu_first: PyTorch sees no GPU")
    torch.set_grad_enabled(False)
    properties = torch.cuda.get_device_properties(0)
    record = {"program": "gpu_first.py", "schema": 1, "command": "./dev bench gpu_first " + " ".join(sys.argv[1:]),
              "facts": {"device": properties.name, "compute capability": f"{properties.major}.{properties.minor}",
                        "multiprocessors": properties.multi_processor_count, "PyTorch": torch.__version__, "CUDA": torch.version.cuda,
                        "cuDNN": torch.backends.cudnn.version()}}
    record["costs"] = {**dict(copies(torch)), **dict(graphs(torch))}
    record["convolutions"] = list(convolutions(torch, [int(batch) for batch in options.batches.split(",")]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_name(options.out.name + ".json").write_text(json.dumps(record))
    options.out.with_name(options.out.name + ".md").write_text(markdown(record))
    print(f"{options.out}.md")


if __name__ == "__main__":
    main()
