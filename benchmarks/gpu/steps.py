"""The steps of a visit to a GPU host. Each takes the Visit, writes its figures to visit.results, and returns one line
for the report. Failed: a result that is wrong or missing. Skipped: this host lacks something."""
import collections
import gzip
import json
import os
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
TUNING_SECONDS = 90
CASE_SECONDS = 20  # of one test case
AT_ONCE = 4        # test programs
# Removed from the tuner's candidates if one of their test cases fails or does not end.
NEW_FAMILIES = "-wgmma,-thin"
WGMMA_CASES = "own kernels on tensor cores: *"
SMALLEST_CASES = ("channels of 8x8", "channels of 5x5")  # of these, under the sanitizers
TEST_PROGRAMS = ["tests/cuda/test_gpu", "tests/cuda/test_real_libraries", "tests/kernels/test_ops", "tests/golden/test_golden",
                 "tests/golden/test_mnist_steps", "tests/golden/test_resnet18"]
LOSS_TOLERANCE = 1e-3  # of 12 steps in float32, whose sums have another order
SKIPPED_STATUS = 4
METRICS = "gpu__time_duration.sum,dram__bytes.sum,lts__t_bytes.sum"
SANITIZER_STATUS = 9


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def resnet(visit):
    return ["--model", "mlp", "-b", 8] if visit.options.small else ["--model", "resnet18", "-b", 512]


def last_line(output):
    return (output.strip().splitlines() or ["no output"])[-1][:300]


def passed(status, output):
    if status != 0:
        raise Failed(f"exit status {status}: {last_line(output)}")
    return output


# ---- steps


def host(visit):
    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,memory.total"
    if shutil.which("nvidia-smi"):
        visit.command(["nvidia-smi", f"--query-gpu={query}", "--format=csv"], "nvidia-smi.log")
    output = passed(*visit.command([visit.program("apps/dp_train/dp_train"), "env"], "env.log"))
    lines = output.splitlines()
    if not any(line.split()[:1] == ["cuda:0"] for line in lines):
        raise Failed(next((line for line in lines if line.startswith("CUDA ")), "dp_train env lists no cuda:0"))
    return "; ".join(" ".join(line.split()) for line in lines if line.split()[:1] and line.split()[0] in ("cuDNN", "cuBLASLt", "NCCL"))


def probe(visit):
    """Programs that answer one question each, carried in build/probe."""
    found = sorted(file for file in (ROOT / "build/probe").glob("*") if os.access(file, os.X_OK))
    if not found:
        raise Skipped("build/probe has no programs")
    for file in found:
        output = passed(*visit.command([file], f"probe-{file.name}.log"))
        (visit.results / f"probe-{file.name}.txt").write_text(output)
    return f"{len(found)} ran"


def cases_of(visit, program, pattern):
    output = visit.command([program, pattern, "--list-test-names-only"], "cases.log", 10)[1]
    return [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("=")]


def run_cases(visit, cases):
    """Runs each (program, case) in its own process, AT_ONCE at a time. Returns [(case, reason it failed)]."""
    wrong, waiting, running = [], list(enumerate(cases)), []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            i, (program, case) = waiting.pop(0)
            log = f"case-{i}.log"
            running.append((visit.start([program, re.sub(r"([,\[\]])", r"\\\1", case)], log), log, case))
        child, log, case = running.pop(0)
        try:
            status, output = visit.finish(child, log, CASE_SECONDS)
            if status != 0 or "No test" in output:
                wrong.append((case, "is skipped" if status == SKIPPED_STATUS else f"exit status {status}: {last_line(output)}"))
        except Exception as error:
            wrong.append((case, str(error)))
    return wrong


def kernels(visit):
    """Own kernels on tensor cores against the baseline. A failure removes the newest families for the rest of the
    visit: a fault in one would end every later program."""
    libraries = visit.program("tests/cuda/test_real_libraries")
    cases = [(libraries, case) for case in cases_of(visit, libraries, WGMMA_CASES)]
    training = visit.program("tests/cuda/test_gpu")
    cases += [(training, case) for case in cases_of(visit, training, "*few steps in bfloat16*")]
    wrong = run_cases(visit, cases)
    if wrong:
        visit.environment.setdefault("DP_CANDIDATES", NEW_FAMILIES)
        raise Failed(f"{len(wrong)} of {len(cases)} cases, DP_CANDIDATES={visit.environment['DP_CANDIDATES']} from here on; "
                     + "; ".join(f"{case}: {why}" for case, why in wrong))
    if not cases:
        raise Failed("no cases")
    return f"{len(cases)} cases"


def tune(visit):
    """Tunes the training step with an empty cache, and runs a few steps."""
    log = visit.work / "tuning.tsv"
    log.unlink(missing_ok=True)
    shutil.rmtree(visit.work / "cache", ignore_errors=True)
    network = ["--model", "mlp", "--input", "1,8,8", "--batch", 8] if visit.options.small else ["--model", "resnet18", "--input", "3,32,32", "--batch", 512]
    words = [visit.program("benchmarks/bench_step"), "--variant", "dp", "--gpus", 0, *network, "--classes", 10, "--batches", 4, "--images-on", "device", "--amp", "bf16"]
    try:
        output = passed(*visit.command(words, "tune.log", text="run 20\n", DP_TUNING_LOG=log, DP_TUNING_SECONDS=TUNING_SECONDS))
    finally:
        if log.is_file():
            with gzip.open(visit.results / "tuning.tsv.gz", "wb") as packed:
                packed.write(log.read_bytes())
            tried, rejected, table = candidates(log.read_text(errors="replace"))
            (visit.results / "tuning.md").write_text(table)
    loss = re.search(r"^done\t.*\bloss=(\S+)", output, re.MULTILINE)
    if not log.is_file() or not loss:
        raise Failed(f"nothing was tuned or trained: {last_line(output)}")
    return f"{tried} candidates timed, {rejected} rejected, loss {float(loss[1]):.3f}"


def family_of(candidate):
    unfused = candidate.startswith("unfused: ")
    words = candidate.removeprefix("unfused: ").split()
    name = words[0] if words[0].startswith(("cudnn", "cublaslt")) else " ".join(words[:2])
    name = name.split(":eng")[0]
    return ("unfused " if unfused else "") + name + (" fused" if "fused" in words else "")


def candidates(log):
    """(number timed, number rejected, Markdown table: per problem the fastest candidate of each family, in µs)"""
    times, rejected, notes = collections.defaultdict(dict), 0, []
    tried = 0
    for line in log.split("\n")[:-1]:
        fields = line.split("\t")
        if len(fields) < 3:
            continue
        problem, candidate, time, *note = fields
        if time == "-":
            if not (note and note[0].startswith("not tried")):
                rejected += 1
                notes.append(f"- {candidate}, {problem}: {' '.join(note)}")
            continue
        tried += 1
        family = family_of(candidate)
        if family not in times[problem] or float(time) < times[problem][family][0]:
            times[problem][family] = (float(time), candidate)
    lines = ["| problem | fastest | us | other families |", "|---|---|---|---|"]
    wins = collections.Counter()
    for problem, families in times.items():
        ordered = sorted(families.items(), key=lambda item: item[1][0])
        wins[ordered[0][0]] += 1
        others = ", ".join(f"{family} {time:.1f}" for family, (time, _) in ordered[1:])
        lines.append(f"| {problem.replace('|', '/')} | {ordered[0][1][1]} | {ordered[0][1][0]:.1f} | {others} |")
    counted = ", ".join(f"{family}: {count}" for family, count in wins.most_common())
    return tried, rejected, "\n".join([f"Fastest per problem: {counted}.", "", *lines, "", "Rejected:", "", *(notes or ["no candidate"]), ""])


def bench(visit, name, words, **variables):
    """Runs dp_bench, keeps its report as JSON and Markdown, and returns the JSON."""
    report = visit.results / f"{name}.json"
    passed(*visit.command([visit.program("apps/dp_bench/dp_bench"), *words, "--python", visit.python, "--json", report, "--markdown", report.with_suffix(".md")],
                          f"{name}.log", **variables))
    return json.loads(report.read_text())


def step_of(visit, name, words, variants, timeout=100):
    few = ["--rounds", 1, "--seconds", 0.01] if visit.options.small else []
    report = bench(visit, name, ["step", "--gpus", 0, *words, "--images-on", "device", "--amp", "--timeout", timeout, "--variants", variants, *few])
    rows = {row["key"]: row for section in report["sections"] if section["key"] == "variants" for row in section["rows"]}
    measured = {key: row["ms_per_step"] for key, row in rows.items() if row["kind"] == "measured"}
    missing = [f"{key}: {rows[key].get('note') if key in rows else 'not measured'}" for key in variants.split(",") if key not in measured]
    text = ", ".join(f"{key} {ms:.3f} ms" for key, ms in measured.items())
    if len(measured) > 1 and "dp1" in measured:
        text += "".join(f", {key} / dp1 = {ms / measured['dp1']:.3f}" for key, ms in measured.items() if key != "dp1")
    if missing:
        raise Failed("; ".join([text, *missing]))
    return text


def step(visit):
    return step_of(visit, "step-resnet18-bf16", [*resnet(visit), *([] if visit.options.small else ["--rounds", 6])], "dp1,torch-cl")


def compiled(visit):
    return step_of(visit, "step-resnet18-bf16-compiled", [*resnet(visit), *([] if visit.options.small else ["--rounds", 6])], "dp1,torch-reduce")


def mnist(visit):
    network = ["--model", "mlp" if visit.options.small else "mnist_convnet", "-b", 8 if visit.options.small else 512]
    return step_of(visit, "step-mnist-bf16", [*network, *([] if visit.options.small else ["--rounds", 4])], "plan,dp1,torch-cl")


def replicas(visit):
    """Two replicas on one GPU."""
    return step_of(visit, "step-resnet18-bf16-replicas", [*resnet(visit), "--replicas-per-device", 2, *([] if visit.options.small else ["--rounds", 3])],
                   "plan,dp1,dp-virtual")


def ops_of(visit, name, words):
    report = bench(visit, name, ["ops", "--gpu", 0, *words, "--amp", "--rounds", 1 if visit.options.small else 3])
    rows = next(section["rows"] for section in report["sections"] if section["key"] == "ops")
    total, sums = sum(row["step_ms"] for row in rows), [row for section in report["sections"] if section["key"] == "sums" for row in section["rows"]]
    whole = sums[0]["step_ms"]
    if abs(total - whole) > 0.01 * whole:
        raise Failed(f"the rows add up to {total:.3f} ms of {whole:.3f}: the table is not complete")
    text = f"{len(rows)} ops, {whole:.3f} ms" + (f", floor {sums[0]['floor_ms']:.3f} ms" if sums[0].get("floor_ms") else "")
    if len(sums) > 1:
        text += f"; beside PyTorch's ops {sums[1]['step_ms']:.3f} ms to {sums[1]['pytorch_ms']:.3f}"
    return text


def ops(visit):
    return ops_of(visit, "ops-resnet18-bf16", resnet(visit))


def ops_mnist(visit):
    return ops_of(visit, "ops-mnist-bf16", ["--model", "mlp", "-b", 8] if visit.options.small else ["--model", "mnist_convnet", "-b", 512])


def counters(visit):
    """Hardware counters by Nsight Compute: wgmma kernels in detail, then time and traffic of each distinct kernel."""
    if not shutil.which("ncu"):
        raise Skipped("ncu is not in PATH")
    tool = ["ncu", "--clock-control", "none", "--filter-mode", "per-launch-config", "-c", 1]
    words = [visit.program("benchmarks/bench_ops"), "--model", "resnet18", "--input", "3,32,32", "--batch", 512, "--amp", "bf16", "--gpu", 0]
    for name, what in (("counters-wgmma.txt.gz", ["--set", "full", "-k", "regex:conv_(warpgroup|wgmma)", "--page", "details"]),
                       ("counters.csv.gz", ["--metrics", METRICS, "--csv", "--page", "raw"])):
        output = passed(*visit.command([*tool, *what, *words], f"{name}.log", 50, text="run 1\n"))
        with gzip.open(visit.results / name, "wt") as packed:
            packed.write(output)
    return f"{sum(line.startswith(chr(34)) for line in output.splitlines())} lines of kernels"


def profile(visit):
    """The kernels of eager PyTorch's step."""
    output = passed(*visit.command([visit.python, ROOT / "benchmarks/gpu/pytorch_profile.py", visit.program("benchmarks")], "profile.log"))
    (visit.results / "profile.txt").write_text(output)
    return last_line(output)


def nccl(visit):
    """NCCL 2.30 or newer, in build/nccl, with two ranks on the GPU: in one process with the bits of p2p, and in two
    with its loss (promise 20 in docs/reference/semantics.md)."""
    library = ROOT / "build/nccl/libnccl.so.2"
    if not library.is_file():
        raise Skipped("build/nccl/libnccl.so.2 is not there")
    shared = {"DP_NCCL_LIBRARY": library, "NCCL_MULTI_RANK_GPU_ENABLE": 1, "NCCL_MAX_CTAS": 4, "NCCL_DEBUG": "WARN"}
    images = ["--dataset", "digits"] if visit.options.small else ["--dataset", "synthetic", "--images", 2048]

    def train(name, words, **variables):
        summary, run = visit.work / f"summary-{name}.json", visit.work / f"run-{name}"
        summary.unlink(missing_ok=True)
        command = [visit.program("apps/dp_train/dp_train"), "--gpus", 0, *images, "-b", 64, "--max-steps", 12, "--deterministic", "--seed", 3, "--graphs", "never",
                   *words, "--summary", summary, "--output-dir", run]
        return visit.start(command, f"nccl-{name}.log", **variables), summary, run

    found, losses, wrong = {}, {}, []
    ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29511}
    two = ["--replicas-per-device", 2]
    for name, words, variables in (("p2p", [*two, "--comm", "p2p"], {}), ("nccl", [*two, "--comm", "nccl"], shared),
                                   ("allreduce", [*two, "--comm", "nccl", "--reduce", "allreduce"], shared), ("ddp", ["--engine", "ddp"], {**shared, **ranks})):
        begun = [train(name, words, **variables)]
        if name == "ddp":
            begun.append(train("ddp-1", words, **variables | {"RANK": 1, "LOCAL_RANK": 1}))
        try:
            for child, summary, _ in begun:
                passed(*visit.finish(child, f"nccl-{summary.stem.removeprefix('summary-')}.log", 30))
            summary = json.loads(begun[0][1].read_text())
            losses[name] = summary["train_loss"]
            if name != "ddp":
                found[name] = summary["weights_sha256"]
        except Exception as error:
            wrong.append(f"{name}: {error}")
        for child, _, run in begun:
            visit.end(child)
            shutil.rmtree(run, ignore_errors=True)
    if len(set(found.values())) > 1:
        wrong.append("weights differ: " + ", ".join(f"{name} {digest[:8]}" for name, digest in found.items()))
    if len(losses) == 4 and abs(losses["ddp"] - losses["p2p"]) > LOSS_TOLERANCE * losses["p2p"]:
        wrong.append(f"losses differ: p2p {losses['p2p']}, ddp {losses['ddp']}")
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{', '.join(found)}: equal weights; ddp: loss {losses['ddp']:.4f}, p2p {losses['p2p']:.4f}"


def sanitize(visit, tool_name):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        raise Skipped("compute-sanitizer is not in PATH")
    program = visit.program("tests/cuda/test_real_libraries")
    cases = [case for case in cases_of(visit, program, WGMMA_CASES) if case.endswith("bfloat16") and any(size in case for size in SMALLEST_CASES)]
    status, output = visit.command([tool, "--tool", tool_name, "--error-exitcode", SANITIZER_STATUS, program, ",".join(cases)], f"{tool_name}.log", CUDA_MODULE_LOADING="LAZY")
    summary = [line.strip("= ") for line in output.splitlines() if "SUMMARY" in line]
    if status != 0 or not summary or "No test" in output:
        raise Failed(summary[-1] if summary else f"exit status {status}: {last_line(output)}")
    return f"{summary[-1]} in {len(cases)} cases"


def memcheck(visit):
    return sanitize(visit, "memcheck")


def racecheck(visit):
    return sanitize(visit, "racecheck")


def tests(visit):
    """Every test program for GPUs as a whole, and the bits of the simulation beside those of the GPU."""
    visit.environment["DP_GOLDEN_FOLDER"] = str(ROOT / "tests/golden")
    running = [(name, visit.start([visit.program(name)], f"{pathlib.Path(name).name}.log")) for name in TEST_PROGRAMS]
    wrong, counts = [], []
    for name, child in running:
        log = f"{pathlib.Path(name).name}.log"
        try:
            status, output = visit.finish(child, log, 1e9)
            counts.append(f"{pathlib.Path(name).name}: {last_line(output)}")
            if status not in (0, SKIPPED_STATUS):
                wrong.append(f"{name}: exit status {status}: {last_line(output)}")
        except Exception as error:
            wrong.append(f"{name}: {error}")
    bits = [visit.command([visit.program(f"tests/cuda/{name}")], f"{name}.log", 60)[1] for name in ("op_bits", "op_bits_simulated")]
    lines = [[line for line in output.splitlines() if line.startswith("bits ")] for output in bits]
    if lines[0] != lines[1] or not lines[0]:
        wrong.append("op_bits: the GPU and the simulation differ")
    if wrong:
        raise Failed("; ".join(wrong))
    return "; ".join([*counts, f"{len(lines[0])} results have the simulation's bits"])


STEPS = {function.__name__: function for function in
         (host, probe, kernels, tune, step, ops, mnist, ops_mnist, replicas, nccl, compiled, counters, profile, memcheck, racecheck, tests)}
LIMITS = {"host": 30, "probe": 15, "kernels": 60, "tune": 130, "step": 60, "ops": 75, "mnist": 45, "ops_mnist": 30, "replicas": 75, "nccl": 75, "compiled": 130,
          "counters": 100, "profile": 30, "memcheck": 60, "racecheck": 240, "tests": 240}  # seconds
PARTS = {"A": ("host", "probe", "kernels", "tune", "step", "ops", "counters", "profile", "mnist", "ops_mnist", "replicas", "nccl", "memcheck"),
         "B": ("host", "kernels", "tune", "step", "ops", "compiled", "counters")}
