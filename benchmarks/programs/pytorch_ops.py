#!/usr/bin/env python3
"""Times single convolutions and linear layers in PyTorch, on the CPU or a GPU, for comparison with bench_ops.cpp. A
server: the first input lines name the ops, `op <conv2d_forward|conv2d_backward_data|...> N C H W O kernel stride
padding`, then `go`. The answer to `run <rounds>` is the median seconds of each op, in the faster of both memory
formats. On a GPU cuDNN chooses algorithms by measured time.
"""

import argparse
import functools
import statistics
import sys
import time
import traceback


def say(word, **fields):
    print("\t".join([word, *(f"{key}={value}" for key, value in fields.items())]), flush=True)


try:
    import torch
except (ImportError, OSError) as error:  # OSError: a library of PyTorch is missing
    say("absent", reason=f"PyTorch is not installed for {sys.executable} ({error})")
    sys.exit(0)


LAUNCH_CYCLES = 400_000  # GPU cycles; longer than the host takes to launch an op
TYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@functools.lru_cache(maxsize=None)
def convolution_tensors(numbers, memory_format, device, dtype):
    """x, weight and gradient. The three passes of a layer share them: a GPU may not have memory for three sets."""
    n, c, h, w, out, *kernel = numbers[:7]
    groups = numbers[13]
    x, weight = (torch.randn(*shape, device=device, dtype=dtype).contiguous(memory_format=memory_format)
                 for shape in ((n, c, h, w), (out, c // groups, *kernel)))
    y = torch.conv2d(x, weight, None, *options_of(numbers))
    return x, weight, torch.randn(y.shape, device=device, dtype=dtype).contiguous(memory_format=memory_format)


def options_of(numbers):
    """Stride, padding, dilation and groups: what follows the kernel in OpWork::convolution."""
    return numbers[7:9], numbers[9:11], numbers[11:13], numbers[13]


def make_op(kind, numbers, memory_format, device, dtype):
    n, c, _, _, out = numbers[:5]
    if kind.startswith("linear"):
        x, weight, bias = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((n, c), (out, c), (out,)))
        dy = torch.randn(n, out, device=device, dtype=dtype)
        return {"linear_forward": lambda: torch.addmm(bias, x, weight.t()), "linear_backward_data": lambda: dy.mm(weight),
                "linear_backward_weights": lambda: (dy.t().mm(x), dy.sum(0))}[kind]
    x, weight, dy = convolution_tensors(numbers, memory_format, device, dtype)
    if kind == "conv2d_forward":
        return lambda: torch.conv2d(x, weight, None, *options_of(numbers))
    mask = [kind == "conv2d_backward_data", kind == "conv2d_backward_weights", False]
    stride, padding, dilation, groups = options_of(numbers)
    return lambda: torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, padding, dilation, False, [0, 0], groups, mask)


def seconds(op, device):
    if device.type == "cuda":
        # Timed by device events. The sleep keeps the GPU busy until the op is launched, so that launches do not count.
        torch.cuda._sleep(LAUNCH_CYCLES)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        op()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)
    start = time.perf_counter()
    op()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gpu", default="")
    parser.add_argument("--amp", default="off", choices=list(TYPES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    device = torch.device("cuda", int(options.gpu)) if options.gpu else torch.device("cpu")
    if options.gpu:
        torch.cuda.set_device(device)  # _sleep() uses the current device
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False  # as in dp without --tf32
    cases = []
    for line in sys.stdin:
        words = line.split()
        if words == ["go"]:
            break
        formats = (torch.contiguous_format, torch.channels_last)
        cases.append([make_op(words[1], tuple(int(word) for word in words[2:]), memory_format, device, TYPES[options.amp])
                      for memory_format in formats])
    for case in cases:
        for op in case:
            seconds(op, device)
    say("ready", program="pytorch", version=torch.__version__)
    for line in sys.stdin:
        rounds = int(line.split()[1])
        medians = []
        for case in cases:
            medians.append(min(statistics.median(seconds(op, device) for _ in range(rounds)) for op in case))
        say("done", seconds=" ".join(map(repr, medians)))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # report the reason in one line: PyTorch's last lines are often advice
        traceback.print_exc()
        say("error", message=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
        sys.exit(1)
