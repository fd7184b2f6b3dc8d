#!/usr/bin/env python3
"""First measurements on a new GPU, with PyTorch only: the cost of copies, graphs and events, and the speed of cuDNN's
convolutions on the shapes of the MNIST convnet and of ResNet18 with both stems. They show the possible gain before any
of our code has run. Rewrites OUT.json and OUT.md after each figure.

    ./dev bench gpu_first --out benchmarks/results/first-h200-2026-11        # needs no build; below 10 minutes
"""

import argparse
import pathlib
import signal
import statistics
import sys
import time

import gpu_record

ROUNDS = 7
ROUND_SECONDS = 0.02
CYCLED_BYTES = 256 << 20  # data that consecutive calls cycle through; more than a cache holds
NODES = 200


def residual(stem, size):
    shapes = [stem, (64, size, 64, 3, 1, 1, 4)]
    for channels in (64, 128, 256):
        shapes += [(channels, size, 2 * channels, 3, 2, 1, 1), (channels, size, 2 * channels, 1, 2, 0, 1), (2 * channels, size // 2, 2 * channels, 3, 1, 1, 3)]
        size //= 2
    return shapes


# channels, size, output channels, kernel, stride, padding, count per step. The first layer needs no data gradient.
NETWORKS = {"ResNet18, 3x3 stem, 32x32": residual((3, 32, 64, 3, 1, 1, 1), 32), "ResNet18, 7x7 stem, 224x224": residual((3, 224, 64, 7, 2, 3, 1), 56),
            "MNIST convnet, 28x28": [(1, 28, 32, 3, 1, 0, 1), (32, 26, 64, 3, 1, 0, 1)]}
PASSES = ("forward", "data", "weights")


def arguments(argv=None):
    parser = argparse.ArgumentParser(prog="./dev bench gpu_first", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], default=[256, 1024], help="batch sizes [256,1024]")
    parser.add_argument("--types", default="bf16,fp16", help="types of the activations [%(default)s]")
    parser.add_argument("--networks", default="", help="only networks whose name contains this text")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all measurements; later ones are not started [%(default)s]")
    parser.add_argument("--commit", metavar="HASH", help="the measured commit, for the record [git's]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-first"), help="write OUT.json and OUT.md [%(default)s]")
    parser.add_argument("--list", action="store_true", help="print the shapes and exit")
    options = parser.parse_args(argv)
    options.types = options.types.split(",")
    if unknown := set(options.types) - {"bf16", "fp16"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


# ---- time


def rounds_of(torch, work, repeats):
    """Microseconds of `repeats` calls of work() by device events: the median of the rounds, without the first one."""
    times = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times[1:])


def microseconds(torch, work, repeats):
    return rounds_of(torch, work, repeats) / repeats


def captured(torch, work):
    """A CUDA graph of the kernels that work() launches."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    return graph


def microseconds_in_graph(torch, works):
    """Microseconds per call of `works`, called in rotation. As graph nodes: launches from the host take longer than
    many of them."""
    for work in works:  # the first call chooses algorithms and loads kernels, outside the graph
        work()
    calls = len(works) * -(-8 // len(works))

    def in_turn():
        for i in range(calls):
            works[i % len(works)]()  # drops the result: all results together may exceed the GPU's memory

    graph = captured(torch, in_turn)
    once = microseconds(torch, graph.replay, 1)
    return microseconds(torch, graph.replay, max(1, round(1e6 * ROUND_SECONDS / once))) / calls


# ---- costs


def costs(torch):
    """[(name, function that measures it)]. GB/s: bytes read plus bytes written on the device; bytes moved over the
    bus."""
    size = 256 << 20
    memory = {}

    def buffer(name):
        if name not in memory:
            memory[name] = torch.empty(size, dtype=torch.uint8, **({"device": "cuda"} if name in "ab" else {"pin_memory": name == "pinned"}))
        return memory[name]

    def copy(target, source, repeats, factor=1):
        return factor * size / microseconds(torch, lambda: buffer(target).copy_(buffer(source), non_blocking=True), repeats) * 1e-3

    def product():
        n = 8192
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return 2 * n ** 3 / microseconds(torch, lambda: torch.mm(a, b), 5) * 1e-6

    x = torch.zeros(32, device="cuda")
    x.add_(1)

    def nodes(count, *more):
        def work():
            for _ in range(count):
                for one in (*more, lambda: x.add_(1)):
                    one()
        return captured(torch, work)

    def host_time():
        graph, times = nodes(NODES), []
        for _ in range(ROUNDS + 1):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            graph.replay()
            times.append(1e6 * (time.perf_counter() - begin))
        return statistics.median(times[1:])

    def event_in_graph(act):
        event = torch.cuda.Event(external=True)  # a separate node, visible to other graphs and streams
        event.record()
        graph, plain = nodes(NODES, lambda: getattr(event, act)()), nodes(NODES)
        return (microseconds(torch, graph.replay, 5) - microseconds(torch, plain.replay, 5)) / NODES

    def forth_and_back():
        side = torch.cuda.Stream()

        def work():
            there, back = torch.cuda.Event(), torch.cuda.Event()
            there.record()
            side.wait_event(there)
            back.record(side)
            torch.cuda.current_stream().wait_event(back)
            x.add_(1)
        return microseconds(torch, work, NODES)

    return [
        ("copy on the device, GB/s", lambda: copy("a", "b", 10, 2)),
        ("pinned memory to the device, GB/s", lambda: copy("a", "pinned", 3)),
        ("device to pinned memory, GB/s", lambda: copy("pinned", "a", 3)),
        ("pageable memory to the device, GB/s", lambda: copy("a", "pageable", 2)),
        ("product of 8192x8192 matrices in bf16, TFLOP/s", product),
        ("a kernel launched by PyTorch, us", lambda: microseconds(torch, lambda: x.add_(1), NODES)),
        ("a kernel as a node of a graph, us", lambda: microseconds(torch, nodes(NODES).replay, 5) / NODES),
        ("a graph of one kernel, one after another, us", lambda: microseconds(torch, nodes(1).replay, NODES)),
        (f"the host's time to launch a graph of {NODES} kernels, us", host_time),
        ("an external event recorded in a graph, us more a node", lambda: event_in_graph("record")),
        ("an external event waited for in a graph, us more a node", lambda: event_in_graph("wait")),
        ("a kernel behind events to a second stream and back, without a graph, us", forth_and_back),
    ]


# ---- convolutions


def shape_text(shape):
    channels, size, out, kernel, stride, padding, _ = shape
    return f"{channels}x{size}x{size} to {out}, {kernel}x{kernel}, stride {stride}, padding {padding}"


def rows_to_measure(options):
    """Rows without figures, ordered by batch size as given."""
    return [{"type": kind, "batch": batch, "network": network, "shape": shape_text(shape), "times": shape[6], "first": shape is shapes[0], "why": "",
             "geometry": shape[:6]}
            for batch in options.batches for kind in options.types for network, shapes in NETWORKS.items() if options.networks in network for shape in shapes]


def measure_convolution(torch, row):
    """Adds microseconds and TFLOP/s of forward, data gradient and weight gradient to the row. Channels last; cuDNN
    chooses the algorithm by measured time."""
    channels, size, out, kernel, stride, padding = row["geometry"]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[row["type"]]

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)

    after = (size + 2 * padding - kernel) // stride + 1
    w = random(out, channels, kernel, kernel)
    numbers = row["batch"] * (channels * size * size + 2 * out * after * after)
    sets = min(16, -(-CYCLED_BYTES // (2 * numbers)))
    data = [(random(row["batch"], channels, size, size), random(row["batch"], out, after, after)) for _ in range(sets)]
    flops = 2.0 * row["batch"] * out * after * after * channels * kernel * kernel

    def backward(x, dy, mask):
        torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, mask)

    calls = {"forward": lambda x, dy: torch.conv2d(x, w, None, stride, padding), "data": lambda x, dy: backward(x, dy, [True, False, False]),
             "weights": lambda x, dy: backward(x, dy, [False, True, False])}
    for name in PASSES:
        if name == "data" and row["first"]:
            continue
        us = microseconds_in_graph(torch, [lambda x=x, dy=dy, call=calls[name]: call(x, dy) for x, dy in data])
        row[name + "_us"], row[name + "_tflops"] = us, flops / us * 1e-6


# ---- record


def sums(rows):
    """One line per network, batch and type: total ms of all convolutions of a step, or "-" if a figure is missing."""
    groups = {}
    for row in rows:
        groups.setdefault((row["network"], row["batch"], row["type"]), []).append(row)
    lines = []
    for key, group in groups.items():
        cells = []
        for name in PASSES:
            parts = [row["times"] * row[name + "_us"] if name + "_us" in row else None for row in group if not (name == "data" and row["first"])]
            cells.append("-" if None in parts else f"{sum(parts) * 1e-3:.3f}")
        lines.append([*key, *cells])
    return lines


def page(record):
    lines = ["# First measurements", "", f"`{record['command']}`, {record['date']}, {record['seconds']:.0f} s", "", *gpu_record.fact_lines(record["facts"])]
    costs_rows = [[row["what"], f"{row['value']:.2f}" if "value" in row else f"not measured: {row['why']}"] for row in record["costs"]]
    lines += gpu_record.table(["what", "measured"], costs_rows)
    lines += ["## Convolutions", "", f"us (TFLOP/s), channels last; medians of {ROUNDS} rounds, as nodes of a graph, on alternating data that exceeds the cache. A network's "
              "first layer needs no data gradient.", ""]
    rows = []
    for row in record["convolutions"]:
        cells = [f"{row[name + '_us']:.1f} ({row[name + '_tflops']:.0f})" if name + "_us" in row else "-" for name in PASSES]
        rows.append([row["network"], row["batch"], row["type"], row["shape"], row["times"], *cells, row["why"]])
    lines += gpu_record.table(["network", "batch", "type", "shape", "in a step", *PASSES, "not measured"], rows)
    lines += ["## All convolutions of a step, ms", "", *gpu_record.table(["network", "batch", "type", *PASSES], sums(record["convolutions"]))]
    return "\n".join(lines)


def torch_with_gpu():
    try:
        import torch
    except (ImportError, OSError) as error:
        sys.exit(f"gpu_first: PyTorch is not installed for {sys.executable} ({gpu_record.one_line(error)})")
    if not torch.cuda.is_available():
        sys.exit("gpu_first: PyTorch finds no GPU")
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    return torch


def main():
    options = arguments()
    rows = rows_to_measure(options)
    if options.list:
        print("\n".join(f"{row['network']}, batch {row['batch']}, {row['type']}: {row['shape']}" for row in rows))
        return
    torch = torch_with_gpu()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    record = gpu_record.begun("gpu_first", sys.argv[1:], options.commit)
    properties = torch.cuda.get_device_properties(0)
    record["facts"].update({"device": properties.name, "compute capability": f"{properties.major}.{properties.minor}",
                            "multiprocessors": properties.multi_processor_count, **gpu_record.torch_facts(torch),
                            "cuDNN plans tried for each": getattr(torch.backends.cudnn, "benchmark_limit", None) or "all"})
    record["costs"], record["convolutions"] = [], rows
    for row in rows:
        row["why"] = "the run ended before this measurement"
    work = [(cost, measure) for what, measure in costs(torch) for cost in [{"what": what, "why": "the run ended before this measurement"}]]
    record["costs"] = [cost for cost, _ in work]

    def save():
        record["seconds"] = time.monotonic() - begin
        gpu_record.write(options.out, record, page)

    def attempt(row, measure):
        if time.monotonic() - begin > options.limit:
            row["why"] = "no time was left"
            return
        print(f"== {row.get('what') or ' '.join(str(row[key]) for key in ('network', 'batch', 'type', 'shape'))}", file=sys.stderr, flush=True)
        row["why"] = "the run ended during this measurement"
        try:
            measure(row)
            row["why"] = ""
        except Exception as error:  # e.g. out of memory or an unsupported shape: the other rows continue
            row["why"] = f"{type(error).__name__}: {gpu_record.one_line(error)}"
            print(row["why"], file=sys.stderr, flush=True)
        save()

    save()
    for cost, measure in work:
        attempt(cost, lambda row, measure=measure: row.update(value=measure()))
    work.clear()  # frees their buffers
    for row in rows:
        attempt(row, lambda row: measure_convolution(torch, row))
        torch.cuda.empty_cache()
    save()
    if all(row["why"] for row in [*record["costs"], *rows]):
        sys.exit(f"gpu_first: nothing could be measured; {rows[0]['why'] if rows else 'no measurement was selected'}")
    print(f"{options.out}.md")


if __name__ == "__main__":
    main()
