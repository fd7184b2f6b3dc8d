#!/usr/bin/env python3
"""Measures a GPU host: training steps of both networks at many batch sizes, compared with the bare plan, virtual
replicas, PyTorch and compiled PyTorch; the candidates for each op; the time of each layer; collectives. Starts
`dp_bench` of the build tree. Rewrites OUT.json and OUT.md after each measurement, so that a stopped run keeps its
results. Later runs can reuse them:

    ./dev bench gpu --quick --out first                                 # the batch sizes of the goals; below 10 minutes
    ./dev bench gpu --limit 540 --with first.json --out second          # continues with the others; repeat as needed
    python3 benchmarks/gpu/gpu.py --with a.json b.json --limit 0 --out all      # merges records, measures nothing
    ./dev bench gpu --list                                              # prints the commands
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time
import traceback

import gpu_record
from gpu_measure import Programs, answer_seconds, measured
from gpu_tables import CIFAR, IMAGENET, MNIST, has_figures, page, reports_of, variants_of, what

SECTIONS = ["step", "virtual", "ways", "layers", "comm"]
SIZES = [64, 128, 256, 512, 1024]
# name, model, input shape, classes, batch sizes of the goals
NETWORKS = [(CIFAR, "resnet18", "3,32,32", 100, [512]), (IMAGENET, "resnet18", "3,224,224", 1000, [256]), (MNIST, "mnist_convnet", "1,28,28", 10, [64, 1024])]
TINY = ("MLP, 8x8", "mlp", "1,8,8", 10, [8])  # chosen only by its full name, to test this program, like --cpu
QUICK = {"types": "bf16", "limit": 540, "each": 300}
FULL = {"types": "bf16,fp16,fp32", "limit": 21600, "each": 900}
LEAST_SECONDS = 20  # no case starts with less time left: GPU programs take longer to start


def arguments(argv=None):
    parser = argparse.ArgumentParser(prog="./dev bench gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="all", help="as for dp_train [all]; measurements on one GPU use the first")
    parser.add_argument("--cpu", type=int, default=0, metavar="N", help="N CPU replicas instead, to test this program")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="only the batch sizes of the goals, in bf16; compiled PyTorch only for ResNet18 on CIFAR")
    parser.add_argument("--types", help="types of the activations [bf16,fp16,fp32; --quick: bf16]")
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], help="batch sizes, instead of the usual ones")
    parser.add_argument("--networks", default="", help="only networks whose name contains this text")
    parser.add_argument("--variants", help="variants of dp_bench step [plan,dp1,torch-cl,torch-compiled]")
    parser.add_argument("--virtual", type=int, default=4, help="replicas on one device [%(default)s]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate seconds of each variant per round [%(default)s]")
    parser.add_argument("--limit", type=float, help="seconds for all cases; later cases are not started [21600; --quick: 540]")
    parser.add_argument("--each", type=float, help="seconds of one case; a variant is stopped if its answer takes more than half of them and all but 90 "
                             "[900; --quick: 300]")
    parser.add_argument("--with", dest="earlier", nargs="+", type=pathlib.Path, default=[], metavar="JSON",
                        help="records of the same commit and GPUs; their results are reused")
    parser.add_argument("--python", default="python3", help="a Python with PyTorch [%(default)s]")
    parser.add_argument("--build", type=pathlib.Path, default=gpu_record.ROOT / "build" / "bench", help="the build folder of dp_bench and dp_train [%(default)s]")
    parser.add_argument("--commit", metavar="HASH", help="the measured commit, for the record [git's]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-benchmarks"), help="write OUT.json and OUT.md [%(default)s]")
    parser.add_argument("--list", action="store_true", help="print the commands and exit")
    options = parser.parse_args(argv)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.only = options.only.split(",")
    options.types = ["fp32"] if options.cpu else options.types.split(",")
    unknown = set(options.only) - set(SECTIONS) | set(options.types) - {"bf16", "fp16", "fp32"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.each < LEAST_SECONDS:
        parser.error(f"--each {options.each:g}: no case ends in less than {LEAST_SECONDS} seconds")
    options.gpus = ids_of(options.gpus)
    return options


def ids_of(text):
    """"0,2-3" as ["0", "2", "3"]. "all": every GPU that nvidia-smi lists, or ["0"] if it lists none."""
    if text == "all":
        return [str(i) for i in range(max(1, len(gpu_record.gpus())))]
    bounds = [part.split("-") for part in text.split(",")]
    return [str(i) for bound in bounds for i in range(int(bound[0]), int(bound[-1]) + 1)]


# ---- what to run


class Commands:
    """Command lines of dp_bench for these options."""

    def __init__(self, options):
        self.options = options
        self.dp_bench = str(options.build / "apps/dp_bench/dp_bench")

    def of_network(self, name, network, batch, kind):
        amp = [] if kind == "fp32" else ["--amp", "--amp-dtype", {"bf16": "bfloat16", "fp16": "float16"}[kind]]
        return [self.dp_bench, name, "--model", network[1], "--input", network[2], "--classes", str(network[3]), "-b", str(batch), *amp]

    def step(self, network, batch, kind, variants, more=()):
        o = self.options
        where = ["--cpu", str(o.cpu)] if o.cpu else ["--gpus", o.gpus[0]]
        return [*self.of_network("step", network, batch, kind), *where, "--images-on", "device", "--rounds", str(o.rounds), "--seconds", str(o.seconds),
                "--timeout", f"{answer_seconds(o.each):.0f}", "--python", o.python, *more, "--variants", variants]

    def ops(self, network, batch, kind, more):
        where = ["--cpu"] if self.options.cpu else ["--gpu", self.options.gpus[0]]
        return [*self.of_network("ops", network, batch, kind), *where, *more]

    def comm(self):
        where = ["--cpu", str(self.options.cpu)] if self.options.cpu else ["--gpus", ",".join(self.options.gpus)]
        return [self.dp_bench, "comm", "-b", "8", "-e", "128M", "-f", "2", *where]


def cases_of(options):
    """[(section, description, command)], the most important first, since a run may be stopped early."""
    commands, cases = Commands(options), []

    def add(rank, section, network, batch, kind, command, **more):
        if section in options.only:
            about = {"network": network[0], "model": network[1], "batch": batch, "type": kind, **more}
            # The first type before the others; within a type by rank, which is lower for the sizes of the goals.
            cases.append(((kind != options.types[0], rank), section, about, command))

    for kind in options.types:
        for network in [TINY] if options.networks == TINY[0] else [network for network in NETWORKS if options.networks in network[0]]:
            goals = network[4]
            eager = options.quick and network[0] != CIFAR
            variants = options.variants or ("plan,dp1,torch-cl" if eager else "plan,dp1,torch-cl,torch-compiled")
            for batch in options.batches or (goals if options.quick else SIZES):
                add(0 if batch in goals or options.batches else 4, "step", network, batch, kind, commands.step(network, batch, kind, variants))
            largest = max(options.batches or (goals if options.quick else SIZES))
            for batch in [largest] if options.batches or options.quick else [256, 1024]:
                add(2, "ways", network, batch, kind, commands.ops(network, batch, kind, ["--rounds", "1", "--steps", "1", "--without-pytorch"]))
            if kind != options.types[0]:
                continue
            add(3, "layers", network, largest, kind, commands.ops(network, largest, kind, ["--python", options.python]))
            if not options.cpu and not (options.quick and network[0] != CIFAR):
                batch = max(options.batches or SIZES)
                add(1, "virtual", network, batch, kind, commands.step(network, batch, kind, "dp1,dp-virtual", ["--replicas-per-device", str(options.virtual)]),
                    replicas=options.virtual)
    if "comm" in options.only and (options.cpu > 1 or len(options.gpus) > 1):
        cases.append(((False, 5), "comm", {}, commands.comm()))
    return [case[1:] for case in sorted(cases, key=lambda case: case[0])]


# ---- records


def key_of(result):
    return result["section"], json.dumps(result["about"], sort_keys=True)


def joined(first, second):
    """Merges two runs of one case: the first run, plus the variants that only the second run measured."""
    if not has_figures(first["report"]):
        return second
    for key in variants_of(second).keys() - variants_of(first).keys():
        first["more"][key] = next(report for report in reports_of(second) if key in variants_of({"report": report}))
    return first


def earlier_of(paths):
    """(facts, environment, runs, results) of earlier records. All must have the same commit, driver and GPUs."""
    facts, environment, runs, results = None, "", [], {}
    for path in paths:
        try:
            record = json.loads(path.read_text())
            program, here = record["program"], record["facts"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            sys.exit(f"gpu: {path} is not a record ({type(error).__name__}: {error})")
        if program != "gpu.py" or record.get("schema") != 2:
            sys.exit(f"gpu: {path} is not a record of this program")
        facts = facts or here
        must_agree(facts, here, path)
        environment = environment or record.get("environment", "")
        runs += [run for run in record["runs"] if run not in runs]
        for result in record["results"]:
            results[key_of(result)] = joined(results.get(key_of(result), result), result)
    return facts, environment, runs, results


def must_agree(facts, others, path):
    for key in sorted({"commit", "driver", *(key for key in {**facts, **others} if key.startswith("GPU "))}):
        if facts.get(key) != others.get(key):
            sys.exit(f"gpu: {path} has another {key}: {others.get(key)}, not {facts.get(key)}; a record has one commit and one host")


class Run:
    def __init__(self, options):
        self.options, self.begin = options, time.monotonic()
        self.record = gpu_record.begun("gpu", sys.argv[1:], options.commit)
        facts, self.record["environment"], runs, earlier = earlier_of(options.earlier)
        self.variables = {}
        if options.limit > 0:
            must_agree(facts or self.record["facts"], self.record["facts"], "this host")
            self.look_around()
        elif facts:
            self.record["facts"] = facts
        self.run = {"command": self.record["command"], "date": self.record["date"], "seconds": 0.0}
        self.record["runs"] = [*runs, self.run]
        cases = {}
        for section, about, command in cases_of(options):
            result = {"section": section, "about": about, "command": " ".join(command), "report": None, "why": "the run ended before this case", "more": {}}
            cases[key_of(result)] = (result, command)
        self.todo = [(result, command) for key, (result, command) in cases.items() if not has_figures(earlier.get(key, result)["report"])]
        results = {key: earlier.get(key, result) for key, (result, _) in cases.items()}
        self.record["results"] = list({**earlier, **results}.values())

    def look_around(self):
        """Records PyTorch and the environment of this host. self.variables passes libraries that only PyTorch's
        packages have to our programs."""
        facts, libraries = gpu_record.asked_of(self.options.python)
        self.variables = gpu_record.library_variables(libraries)
        self.record["facts"].update({**facts, **self.variables})
        env = [self.options.build / "apps/dp_train/dp_train", "env"]
        self.record["environment"] = gpu_record.said(env, 120) or "dp_train env printed nothing"

    def save(self):
        self.run["seconds"] = time.monotonic() - self.begin
        gpu_record.write(self.options.out, self.record, page)

    def put(self, result):
        """Replaces the result of the same case."""
        results = self.record["results"]
        results[[key_of(other) for other in results].index(key_of(result))] = result

    def measure_all(self):
        programs = Programs({**os.environ, **self.variables})
        self.save()
        for result, command in self.todo:
            left = self.options.limit - (time.monotonic() - self.begin)
            if left < LEAST_SECONDS:
                result["why"] = "no time was left" if self.options.limit > 0 else "in none of the records"
                continue
            print(f"== {what(result)}, after {time.monotonic() - self.begin:.0f} s", file=sys.stderr, flush=True)
            self.put(result)
            result["why"] = "the run ended during this case"
            self.save()
            try:
                result.update(measured(programs, result, command, min(left, self.options.each)))
            except Exception as error:  # the other cases continue
                traceback.print_exc()
                result["why"] = f"{type(error).__name__}: {gpu_record.one_line(error)}"
            times = ", ".join(f"{key} {row['ms_per_step']:.3f}" for key, row in variants_of(result).items() if row["ms_per_step"])
            print("\n".join(filter(None, [times and f"ms: {times}", result["why"]])), file=sys.stderr, flush=True)
            self.save()
        self.save()


def main():
    options = arguments()
    if options.list:
        for section, _, command in cases_of(options):
            print(section + ":", " ".join(command))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also ends the running measurement
    run = Run(options)
    run.measure_all()
    results = run.record["results"]
    if not any(has_figures(result["report"]) for result in results):
        sys.exit("gpu: nothing could be measured; " + (results[0]["why"] if results else "no case was selected"))
    print(f"{options.out}.md")


if __name__ == "__main__":
    main()
