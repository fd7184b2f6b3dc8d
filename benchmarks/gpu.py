#!/usr/bin/env python3
"""Everything that is to be known of one GPU host, in one run: training steps of both networks at many batch sizes, beside the bare
plan, virtual replicas, PyTorch and compiled PyTorch; what each layer takes; collectives. It starts `dp_bench` and `dp_train` of the build tree and
writes one JSON file and one table.

    ./dev bench gpu --out benchmarks/results/gpu-h200-2026-11 --python python3
    ./dev bench gpu --only step --quick          # the sizes that the goals name
    ./dev bench gpu --list                       # what would be run
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
IMAGES_PER_EPOCH = {"resnet18": 50000, "mnist_convnet": 60000}

# name, model, input, classes, batches of a full run, those of --quick
NETWORKS = [
    ("ResNet18, 3x3 stem, 32x32", "resnet18", "3,32,32", 100, [64, 128, 256, 512, 1024], [512]),
    ("ResNet18, 7x7 stem, 224x224", "resnet18", "3,224,224", 1000, [64, 128, 256], [256]),
    ("MNIST convnet, 28x28", "mnist_convnet", "1,28,28", 10, [64, 128, 256, 512, 1024], [64, 1024]),
]


def arguments(argv=None):
    parser = argparse.ArgumentParser(prog="./dev bench gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="all", help="as dp_train's [all]; the first one for what needs one")
    parser.add_argument("--cpu", type=int, default=0, metavar="N", help="N CPU replicas instead: to try this program out")
    parser.add_argument("--only", default="step,virtual,layers,ways,comm", help="sections, separated by commas [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="the batch sizes that the goals name, no others")
    parser.add_argument("--types", default="bf16,fp16,fp32", help="of activations [%(default)s]")
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], help="batch sizes instead")
    parser.add_argument("--networks", default="", help="only those whose name has this in it")
    parser.add_argument("--variants", default="plan,dp1,torch-cl,torch-compiled", help="of dp_bench step [%(default)s]")
    parser.add_argument("--virtual", type=int, default=4, help="replicas on one device [%(default)s]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a variant in a round [%(default)s]")
    parser.add_argument("--limit", type=float, default=21600, help="seconds in all; what does not begin in time is not run [%(default)s]")
    parser.add_argument("--python", default="python3", help="one that has PyTorch")
    parser.add_argument("--build", type=pathlib.Path, default=BUILD, help="where dp_bench and dp_train were built [%(default)s]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-benchmarks"), help="OUT.json and OUT.md are written")
    parser.add_argument("--list", action="store_true", help="print the commands and leave")
    options = parser.parse_args(argv)
    options.only = options.only.split(",")
    options.gpus = ids_of(options.gpus)
    options.types = ["fp32"] if options.cpu else options.types.split(",")
    unknown = set(options.only) - {"step", "virtual", "layers", "ways", "comm"} | set(options.types) - {"bf16", "fp16", "fp32"}
    if unknown:
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    return options


def ids_of(text):
    """"0,2-3" as ["0", "2", "3"]; all: as many as nvidia-smi lists, or the first one where there is none."""
    if text == "all":
        return [str(i) for i in range(max(1, len(gpu_facts())))]
    bounds = [part.split("-") for part in text.split(",")]
    return [str(i) for bound in bounds for i in range(int(bound[0]), int(bound[-1]) + 1)]


def amp_of(kind):
    return [] if kind == "fp32" else ["--amp", kind]


def step_command(options, network, batch, kind, variants, more=()):
    _, model, shape, classes, _, _ = network
    where = ["--cpu", str(options.cpu)] if options.cpu else ["--gpus", options.gpus[0]]
    return [str(options.build / "apps/dp_bench/dp_bench"), "step", "--model", model, "--input", shape, "--classes", str(classes), "-b",
            str(batch), *where, "--images-on", "device", "--rounds", str(options.rounds), "--seconds", str(options.seconds), "--timeout", "900",
            "--variants", variants, "--python", options.python, *amp_of(kind), *more]


def cases_of(options):
    """(section, what it is, command), the most telling first."""
    cases = []
    networks = [network for network in NETWORKS if options.networks in network[0]]
    for kind in options.types:
        for network in networks:
            batches = options.batches or (network[5] if options.quick or kind == "fp16" else network[4])
            for batch in sorted(batches, key=lambda size: size not in network[5]):
                about = {"network": network[0], "model": network[1], "batch": batch, "type": kind}
                if "step" in options.only:
                    cases.append(("step", about, step_command(options, network, batch, kind, options.variants)))
    kind = options.types[0]
    for network in networks:
        batch = max(options.batches or [1024 if network[2] != "3,224,224" else 256])
        about = {"network": network[0], "model": network[1], "batch": batch, "type": kind}
        if "virtual" in options.only and not options.cpu:
            cases.append(("virtual", {**about, "replicas": options.virtual},
                          step_command(options, network, batch, kind, "dp1,dp-virtual", ["--replicas-per-device", str(options.virtual)])))
        if "layers" in options.only:
            where = [] if options.cpu else ["--gpu", options.gpus[0]]
            cases.append(("layers", about, [str(options.build / "apps/dp_bench/dp_bench"), "ops", "--model", network[1], "--input", network[2],
                                            "--classes", str(network[3]), "-b", str(batch), *where, "--python", options.python, *amp_of(kind)]))
    for kind in options.types if "ways" in options.only else []:
        for network in networks:
            batch = max(options.batches or network[5])
            about = {"network": network[0], "model": network[1], "batch": batch, "type": kind}
            where = [] if options.cpu else ["--gpu", options.gpus[0]]
            cases.append(("ways", about, [str(options.build / "apps/dp_bench/dp_bench"), "ops", "--model", network[1], "--input", network[2], "--classes",
                                          str(network[3]), "-b", str(batch), *where, "--rounds", "1", "--steps", "1", "--without-pytorch", *amp_of(kind)]))
    if "comm" in options.only and (options.cpu > 1 or len(options.gpus) > 1):
        where = ["--cpu", str(options.cpu)] if options.cpu else ["--gpus", ",".join(options.gpus)]
        cases.append(("comm", {}, [str(options.build / "apps/dp_bench/dp_bench"), "comm", "-b", "8", "-e", "128M", "-f", "2", *where]))
    # What the goals name comes before further types: a run that is stopped has it.
    sections = ["step", "virtual", "layers", "ways", "comm"]
    return sorted(cases, key=lambda case: (case[1].get("type", options.types[0]) != options.types[0], sections.index(case[0])))


def kind_of_way(name):
    """The column of a way in the table of ways; what a fused op's parts in turn are is a kind of its own."""
    if name.startswith("in turn: "):
        return "in_turn"
    fused = name.split(" tf32")[0].split(" widened")[0].endswith(" fused")
    if name.startswith(("cudnn:", "cublaslt:")):
        return "library_fused" if fused else "library"
    return "own_fused" if fused else "own_tensor" if name.startswith("own:mma") else "own"


WAYS = {"own": "own", "own_tensor": "own, tensor cores", "library": "library", "in_turn": "parts in turn", "own_fused": "own, fused",
        "library_fused": "library, fused"}


def ways_report(log):
    """A log of trials (DP_TUNING_LOG) as a report: for each problem the fastest way of each kind, in microseconds."""
    best, failed = {}, {}
    for line in log.splitlines():
        if line.count("\t") != 2:
            continue  # torn: the program was stopped
        problem, way, time = line.split("\t")
        kinds = best.setdefault(problem, {})
        if time == "-":
            failed[problem] = failed.get(problem, 0) + 1
            continue
        kind = kind_of_way(way)
        if kind not in kinds or float(time) < kinds[kind][0]:
            kinds[kind] = (float(time), way)
    rows = []
    for problem, kinds in best.items():
        chosen = min(kinds.values(), default=(None, "-"))
        rows.append({"kind": "measured", "problem": problem, **{kind: kinds.get(kind, (None,))[0] for kind in WAYS}, "refused": failed.get(problem, 0),
                     "fastest": chosen[1]})
    columns = {"problem": "problem", **{kind: f"{title}, us" for kind, title in WAYS.items()}, "refused": "refused", "fastest": "fastest"}
    return {"facts": {}, "sections": [{"key": "ways", "title": "Ways to compute each op", "columns": columns, "rows": rows}]}


def run_ways(command, seconds):
    """The ways that `command` tries out, with no choices of earlier runs, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        try:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False,
                                  env={**os.environ, "DP_TUNING_LOG": str(log), "XDG_CACHE_HOME": folder})
        except subprocess.TimeoutExpired:
            return None, f"not finished after {seconds:.0f} s"
        except OSError as error:
            return None, str(error)
        if done.returncode:
            return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return (ways_report(log.read_text()), "") if log.is_file() else (None, "nothing was tried out")


def run(command, seconds):
    """The report of a dp_bench command, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "report.json")
        try:
            done = subprocess.run([*command, "--json", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds,
                                  check=False)
        except subprocess.TimeoutExpired:
            return None, f"not finished after {seconds:.0f} s"
        except OSError as error:
            return None, str(error)
        if done.returncode or not path.is_file():
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return None, lines[-1]
        return json.loads(path.read_text()), ""


def rows_of(report, key):
    return next((section["rows"] for section in report["sections"] if section["key"] == key), [])


def variants_of(report):
    return {row["key"]: row for row in rows_of(report, "variants") if row["kind"] == "measured"}


def ratio(report, theirs, ours):
    """How much longer theirs takes, by the medians of the ratios round by round: (ratio, least, greatest) or None."""
    titles = {row["key"]: row["variant"] for row in rows_of(report, "variants")}
    wanted = f"{titles.get(theirs)} / {titles.get(ours)}"
    found = [row for row in rows_of(report, "ratios") if row["ratio_of"] == wanted]
    return (found[0]["ratio"], found[0]["low"], found[0]["high"]) if found else None


def shown(value, digits=2):
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return f"{value[0]:.{digits}f} ({value[1]:.{digits}f} to {value[2]:.{digits}f})"
    return f"{value:,.{digits}f}"


def table(heads, rows):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows), ""]


def step_rows(results):
    rows = []
    for result in results:
        about, report = result["about"], result["report"]
        begin = [about["network"], str(about["batch"]), about["type"]]
        if report is None:
            rows.append([*begin, f"not run: {result['why']}", *[""] * 7])
            continue
        variants = variants_of(report)
        ms = {key: row["ms_per_step"] for key, row in variants.items()}
        own = ms.get("dp1")
        images = about["batch"] * 1e3 / own if own else None
        epoch = IMAGES_PER_EPOCH[about["model"]] / images if own and "224" not in about["network"] else None
        rows.append([*begin, shown(ms.get("plan"), 3), shown(own, 3), shown(images, 0), shown(epoch, 3), shown(ms.get("torch-cl"), 3),
                     shown(ms.get("torch-compiled"), 3), shown(ratio(report, "torch-cl", "dp1")), shown(ratio(report, "torch-compiled", "dp1"))])
    return rows


def layer_lines(result):
    about, report = result["about"], result["report"]
    lines = [f"### {about['network']}, batch {about['batch']}, {about['type']}", ""]
    if report is None:
        return [*lines, f"not run: {result['why']}", ""]
    section = max(report["sections"], key=lambda section: len(section["rows"]))
    keys = list(section["columns"])
    cells = [[shown(row[key], 3) if isinstance(row[key], (int, float)) else str(row[key] or "-") for key in keys] for row in section["rows"]]
    return [*lines, *table([section["columns"][key] for key in keys], cells)]


def markdown(record):
    facts = next((result["report"]["facts"] for result in record["results"] if result["report"]), {})
    lines = ["# Measured on one host", "", f"`{record['command']}`", "", f"{record['date']}, {record['seconds']:.0f} s in all.", ""]
    lines += [f"- {key}: {value}" for key, value in {**facts, **record["facts"]}.items() if key not in ("command", "date")] + [""]
    of = lambda section: [result for result in record["results"] if result["section"] == section]  # noqa: E731
    if of("step"):
        lines += ["## Training steps", "", "Medians of the rounds, all variants in turn, the augmented images made on the device by all. Ratios: the median round by "
                  "round, with the interval that holds it in 95 of 100 cases.", ""]
        lines += table(["network", "batch", "type", "bare plan ms", "dp ms", "img/s", "s/epoch", "PyTorch ms", "compiled ms", "PyTorch / dp", "compiled / dp"],
                       step_rows(of("step")))
        lines += ["## The engine beside the bare plan", ""]
        lines += table(["network", "batch", "type", "plan / dp (at least 0.990)"],
                       [[r["about"]["network"], str(r["about"]["batch"]), r["about"]["type"], shown(ratio(r["report"], "plan", "dp1"), 3)] for r in of("step") if r["report"]])
    if of("virtual"):
        lines += ["## Replicas on one device, the same global batch", ""]
        rows = []
        for result in of("virtual"):
            about, report = result["about"], result["report"]
            value = shown(ratio(report, "dp1", "dp-virtual"), 3) if report else f"not run: {result['why']}"
            rows.append([about["network"], str(about["batch"]), about["type"], str(about["replicas"]), value])
        lines += table(["network", "batch", "type", "replicas", "one / several (at least 0.935)"], rows)
    for section, title in (("layers", "Layers"), ("ways", "Ways to compute each op")):
        lines += ["## " + title, ""] if of(section) else []
        for result in of(section):
            lines += layer_lines(result)
    for result in of("comm"):
        lines += ["## Collectives", "", f"not run: {result['why']}", ""] if result["report"] is None else ["## Collectives", ""]
        for section in result["report"]["sections"] if result["report"] else []:
            keys = list(section["columns"])
            lines += [f"### {section['title']}", ""]
            lines += table([section["columns"][key] for key in keys],
                           [[shown(row[key]) if isinstance(row[key], float) else str(row[key] if row[key] is not None else "-") for key in keys]
                            for row in section["rows"]])
    return "\n".join(lines)


def gpu_facts():
    """What nvidia-smi says of the devices."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return {f"GPU {i}": line for i, line in enumerate(text.strip().splitlines())}


def main():
    options = arguments()
    cases = cases_of(options)
    if options.list:
        for section, _, command in cases:
            print(section + ":", " ".join(command))
        return
    begin = time.monotonic()
    record = {"program": "gpu.py", "schema": 1, "command": "./dev bench gpu " + " ".join(sys.argv[1:]),
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "facts": gpu_facts(), "results": []}
    for section, about, command in cases:
        left = options.limit - (time.monotonic() - begin)
        print(f"== {section} {about.get('network', '')} {about.get('batch', '')} {about.get('type', '')}", file=sys.stderr, flush=True)
        report, why = (run_ways if section == "ways" else run)(command, left) if left > 10 else (None, "no time was left")
        if why:
            print(why, file=sys.stderr)
        record["results"].append({"section": section, "about": about, "command": " ".join(command), "report": report, "why": why})
        record["seconds"] = time.monotonic() - begin
        options.out.parent.mkdir(parents=True, exist_ok=True)  # after each case: what is there is kept, whatever comes
        options.out.with_name(options.out.name + ".json").write_text(json.dumps(record))
        options.out.with_name(options.out.name + ".md").write_text(markdown(record))
    if not any(result["report"] for result in record["results"]):
        sys.exit("gpu: nothing could be measured; " + (record["results"][0]["why"] if record["results"] else "nothing was asked for"))
    print(f"{options.out}.md")


if __name__ == "__main__":
    main()
