#!/usr/bin/env python3
"""Training steps of dp and of PyTorch on the CPU, in turns on the same cores. benchmarks/README.md says how to read it."""

import argparse
import contextlib
import datetime
import math
import os
import re
import shlex
import sys
import tempfile
import time

import report
from measured_server import Server, ServerError, machine_cpu_seconds

FOLDER = os.path.dirname(os.path.abspath(__file__))
PAUSE = 0.1  # seconds between measurements: threads that wait actively for more work have given up by then


class Load:
    """Who used the processor while one server was measured."""

    def __init__(self):
        self.elapsed = self.others = self.idle = 0.0

    def watch(self, measured, idle, work):
        time.sleep(PAUSE)
        before = time.monotonic(), machine_cpu_seconds(), measured.cpu_seconds(), [s.cpu_seconds() for s in idle]
        answer = work()
        idle_used = sum(s.cpu_seconds() - b for s, b in zip(idle, before[3]))
        machine = machine_cpu_seconds() - before[1]
        self.elapsed += time.monotonic() - before[0]
        self.idle += idle_used
        self.others += max(0.0, machine - (measured.cpu_seconds() - before[2]) - idle_used)
        return answer

    def describe(self):
        return {"others_cores": self.others / self.elapsed, "idle_server_cores": self.idle / self.elapsed}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mnist_convnet")
    parser.add_argument("--input", default="1,28,28", help="shape of a sample")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=192, help="different batches, used in turn; more than the cache holds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one variant in one round")
    parser.add_argument("--slices", type=int, default=40, help="pairs of slices, for the lines about per cents")
    parser.add_argument("--slice-steps", type=int, default=20)
    parser.add_argument("--fast-conv", action="store_true", help="as dp_train's")
    parser.add_argument("--step", default=os.path.join(FOLDER, "../build/bench/benchmarks/step"), help="the program step")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    parser.add_argument("--pytorch-pinning", choices=["spread", "openmp", "none"], default="spread",
                        help="spread: every thread, BLAS's too; openmp: OMP_PROC_BIND alone; none: the scheduler decides")
    parser.add_argument("--without-pytorch", action="store_true")
    parser.add_argument("--record", metavar="NAME", help="write benchmarks/results/NAME.md and NAME.json")
    options = parser.parse_args()
    if min(options.rounds, options.slices, options.slice_steps, options.threads, options.batches, options.batch) < 1:
        parser.error("rounds, slices, steps, threads and batches are at least 1")
    if options.record and not re.fullmatch(r"[\w.-]+", options.record):
        parser.error("--record takes a name of letters, digits, '.', '_' and '-'")
    return options


def start(options, stack, inputs):
    """The servers, dp's first. Both begin with the same weights and use the same batches."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))}
    shared = ["--model", options.model, "--input", options.input, "--classes", options.classes, "--batch", options.batch,
              "--batches", options.batches, "--threads", options.threads]
    shared = [str(word) for word in shared]
    own = ["--fast-conv"] if options.fast_conv else []
    servers = [stack.enter_context(Server([options.step, *shared, *own, "--save-inputs", inputs], clean, "step"))]
    if options.without_pytorch:
        return servers
    environment = clean | {"OMP_NUM_THREADS": str(options.threads)}
    if options.pytorch_pinning != "none":
        environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    command = [options.python, os.path.join(FOLDER, "pytorch_step.py"), *shared, "--inputs", inputs]
    try:
        servers.append(stack.enter_context(
            Server(command + ["--spread"] * (options.pytorch_pinning == "spread"), environment, "pytorch_step.py")))
    except ServerError as error:
        raise ServerError(f"{error}; PyTorch is Debian's python3-torch, or use --python, or --without-pytorch") from None
    ours, theirs = (server.ready["start_loss"] for server in servers)
    if not math.isclose(ours, theirs, rel_tol=1e-4):
        raise ServerError(f"the programs do not compute the same: from equal weights and inputs, losses {ours} and {theirs}")
    return servers


def steps_for(server, variant, seconds):
    """Warms the variant up and finds how many steps take about that long."""
    server.ask(f"run {variant} 5")
    return max(1, round(seconds / server.ask(f"run {variant} 5")["seconds_per_step"]))


def measure(options, servers):
    home = {variant: server for server in servers for variant in server.ready["variants"]}
    steps = {variant: steps_for(server, variant, options.seconds) for variant, server in home.items()}
    rounds = {variant: [] for variant in home}
    load = Load()
    for number in range(options.rounds):
        variants = list(home)
        first = number % len(variants)
        for variant in variants[first:] + variants[:first]:
            server = home[variant]
            answer = load.watch(server, [other for other in servers if other is not server],
                                lambda: server.ask(f"run {variant} {steps[variant]}"))
            rounds[variant].append(answer["seconds_per_step"])
        shown = ", ".join(f"{variant} {1e3 * seconds[-1]:.1f}" for variant, seconds in rounds.items())
        print(f"round {number + 1} of {options.rounds}, ms/step: {shown}", flush=True)

    pairs = []
    step = servers[0]
    for a, b, limit in (("plan", "dp1", 1), ("dp1", f"dp{options.threads}", 5)):
        if b not in home or a == b:
            continue
        print(f"{options.slices} slices each of {a} and {b}", flush=True)
        answer = load.watch(step, servers[1:], lambda: step.ask(f"pair {a} {b} {options.slice_steps} {options.slices}"))
        pairs.append(answer | {"limit_percent": limit})
    return {
        "rounds": rounds, "pairs": pairs, "steps_per_round": steps, "load": load.describe(),
        "program_of": {variant: server.ready["ready"] for variant, server in home.items()},
    }


def command_line():
    words = [os.path.relpath(sys.argv[0], os.path.join(FOLDER, "..")), *sys.argv[1:]]
    return shlex.join(["python3", *words])


def main():
    options = arguments()
    if not os.access(options.step, os.X_OK):
        sys.exit(f"compare: there is no program {os.path.normpath(options.step)}; ./dev bench builds it, --step names another")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        try:
            servers = start(options, stack, os.path.join(scratch, "inputs"))
            measured = measure(options, servers)
        except ServerError as error:
            sys.exit(f"compare: {error}")
        versions = {key: value for server in servers for key, value in server.ready["versions"].items()}
        differences = servers[0].ready["differences"]
    settings = {key: getattr(options, key) for key in
                ("model", "input", "classes", "batch", "batches", "threads", "rounds", "seconds", "slices", "slice_steps",
                 "pytorch_pinning")}
    result = {
        "date": datetime.date.today().isoformat(), "commit": report.commit(), "processor": report.processor(),
        "cores": len(os.sched_getaffinity(0)), "versions": versions, "command": command_line(), "settings": settings,
        "weights_apart_after_3_steps": differences, **measured,
    }
    print("\n" + report.markdown(result))
    if options.record:
        for path in report.write_record(result, os.path.join(FOLDER, "results"), options.record):
            print(f"wrote {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
