"""All checks except test programs (cases.py, ctests.py), the sanitizers (sanitizer.py) and measurements
(measures.py)."""
import json
import math
import os
import pathlib
import tempfile
from collections import Counter

import libraries
from cases import CASE_SECONDS, tested
from measures import BATCH

CORES = os.cpu_count() or 2
# Flags of the training runs. DRY_SIZES: for the simulated GPUs of a dry run.
SIZES = {
    "headline": ["--model", "resnet18", "--dataset", "synthetic", "-b", BATCH, "--amp", "--max-steps", 50],
    "replicas": (("mnist_convnet", ["--dataset", "digits", "--max-steps", 20]),
                 ("resnet18", ["--model", "resnet18", "--dataset", "synthetic", "--bn", "sync", "-b", "32", "--max-steps", 20])),
    "digits": ["--dataset", "digits", "--epochs", 2],
    "graphs": ["--model", "resnet18", "--dataset", "synthetic", "-b", "32", "--amp", "--no-autotune", "--max-steps", 50],
}
DRY_MLP = ["--model", "mlp", "--dataset", "digits", "-b", 8, "--max-steps", 2, "--images-on", "host"]
DRY_SIZES = {"headline": [*DRY_MLP, "--amp"], "replicas": (("mlp", DRY_MLP),), "digits": DRY_MLP, "graphs": [*DRY_MLP, "--amp", "--no-autotune"]}
DIGITS_TOP1 = 90  # percent, after two epochs
MOST_NAMED = 20   # rejected candidates in a report; the log has all
# Targets of the GPU parts, and the programs of dp_bench. build_the_rest() builds the simulation and the other tests.
GPU_TARGETS = ["dp_train", "dp_cuda", "test_gpu", "test_real_libraries", "test_ops", "test_golden", "test_mnist_steps", "test_resnet18",
               "op_bits", "dp_bench", "bench_step", "bench_ops", "bench_comm"]
# Without these targets no part can run.
ESSENTIAL = ["dp_train", "dp_cuda", "test_gpu"]


def program(build, name):
    return build / "apps" / "dp_train" / name


def configure(parts, root, folder, gpus):
    architectures = ";".join(sorted({gpu.architecture for gpu in gpus}))

    def check(part):
        status, output = parts.command(part, [root / "dev", "deps"], 120, root)
        if status == 0:
            status, output = parts.command(
                part, ["cmake", "--preset", "release", "-B", folder, "-DDP_CUDA=ON", "-DDP_BUILD_TESTS=ON",
                       f"-DDP_TEST_TIMEOUT={CASE_SECONDS}", f"-DDP_CUDA_ARCHITECTURES={architectures}"], 120, root)
        if status == 0 and "CUDA backend is not built" in output:
            return parts.verdict(part, False, "CMake found no suitable CUDA toolkit: CUDACXX, PATH or /usr/local/cuda/bin must have "
                                 "nvcc of CUDA 12.4 or newer")
        parts.verdict(part, status == 0, f"for sm_{architectures}" if status == 0 else f"exit status {status}")

    return parts.run("configuring", check, always=True)


def built(parts, part, root, folder, limit, *targets):
    # -k 0: failed commands must not stop the other ones.
    chosen = ["--target", *targets] if targets else []
    status, output = parts.command(part, ["nice", "cmake", "--build", folder, "-j", CORES, *chosen, "--", "-k", "0"], limit, root)
    failed = sum(line.startswith("FAILED: ") for line in output.splitlines())
    return status, f"{output.count('warning:')} warnings" if status == 0 else f"exit status {status}, {failed} commands failed"


def build(parts, root, folder):
    """Builds the targets of the GPU parts. Returns whether at least the essential ones exist: one failed program does
    not end the check."""
    def check(part):
        status, detail = built(parts, part, root, folder, 300, *GPU_TARGETS)
        parts.verdict(part, status == 0, detail)

    def has_essentials(part):
        # Builds again instead of looking for files: those may be from an older tree.
        status, _ = parts.command(part, ["cmake", "--build", folder, "-j", CORES, "--target", *ESSENTIAL], 60, root)
        parts.verdict(part, status == 0, "the other parts run with the programs that exist" if status == 0 else
                      f"not all of {', '.join(ESSENTIAL)} could be built: nothing to run")

    return parts.run("build for the GPU parts", check, always=True) or parts.run("essential programs", has_essentials, always=True)


def build_the_rest(parts, root, folder):
    def check(part):
        status, detail = built(parts, part, root, folder, 240)
        parts.verdict(part, status == 0, detail)

    parts.run("build of the other tests", check, always=True)


def environment(parts, build, facts):
    """Runs `dp_train env` and stores its output in facts["environment"]."""
    def check(part):
        status, output = parts.command(part, [program(build, "dp_train"), "env"], 240)  # probes all pairs of GPUs
        print(output)
        facts["environment"] = output
        wrong = [f"exit status {status}"] if status != 0 else []
        if not any(line.split()[:1] == ["cuda:0"] for line in output.splitlines()):
            wrong.append(next((line for line in output.splitlines() if line.startswith("CUDA ")), "it lists no cuda:0"))
        wrong += libraries.unused(output, parts.environment)
        parts.verdict(part, not wrong, "; ".join(wrong))

    parts.run("dp_train env", check)


def bits_of(output):
    lines = [line.split() for line in output.splitlines() if line.startswith("bits ")]
    return {(op, case): value for _, op, case, value in lines}


def op_bits(parts, build):
    def check(part):
        status, output = parts.command(part, [tested(build, "cuda", "op_bits_simulated")], 60)
        simulated = bits_of(output)
        real_status, output = parts.command(part, [tested(build, "cuda", "op_bits")], 60,
                                            DP_PLUGIN_PATH=program(build, "libdp_cuda.so"))
        real = bits_of(output)
        different = [" ".join(key) for key in simulated.keys() | real.keys() if simulated.get(key) != real.get(key)]
        part.failed_tests = sorted(different)
        ops = sorted({op for op, _ in simulated})
        part.notes = [f"compared: {', '.join(ops)}",
                      "not compared bit by bit: softmax_cross_entropy, batch_norm (functions and contractions that round "
                      "differently on the two sides); the tests compare them with the reference"]
        detail = f"{len(simulated)} results of {len(ops)} ops, {len(different)} differ"
        parts.verdict(part, status == 0 and real_status == 0 and len(simulated) > 0 and not different, detail)

    parts.run("simulated and real bits", check)


def train(parts, part, build, limit, *flags, **variables):
    """Runs dp_train and returns its summary, or None with the part's detail set."""
    with tempfile.TemporaryDirectory() as folder:
        summary = pathlib.Path(folder) / "summary.json"
        status, output = parts.command(
            part, [program(build, "dp_train"), "--gpus", "0", "--quiet", "--summary", summary, "--output-dir",
                   pathlib.Path(folder) / "run", *flags], limit, **variables)
        if status == 0:
            return json.loads(summary.read_text())
        last = (output.strip().splitlines() or ["no output"])[-1]
        parts.verdict(part, False, f"exit status {status}: {last}")
        return None


def headline(parts, build):
    """The configuration of the goals: ResNet18 in bfloat16, after autotuning its layers. The log tuning.tsv has the
    times of the candidates. The choices stay in the cache for the later measurements."""
    log = parts.logs / "tuning.tsv"

    def check(part):
        log.unlink(missing_ok=True)
        summary = train(parts, part, build, 200, *parts.sizes["headline"], DP_TUNING_LOG=log)
        if summary is None:
            return
        lines = [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []
        tried = [(problem, name, time, (note or [""])[0]) for problem, name, time, *note in filter(lambda line: len(line) > 2, lines)]
        untried = [line for line in tried if line[3].startswith("not tried")]
        rejected = [line for line in tried if line[2] == "-" and line not in untried]
        # At least one candidate of a library or of our tensor-core kernels must be correct: the others are not fast.
        fast = [line for line in tried if line[2] != "-" and ("mma" in line[1] or "cudnn:" in line[1] or "cublaslt:" in line[1])]
        part.notes = [f"{count} candidates: {note or 'rejected'}" for note, count in sorted(Counter(line[3] for line in rejected + untried).items())]
        part.notes += [f"{problem}: {name} {note}" for problem, name, _, note in rejected[:MOST_NAMED]]
        loss = summary["train_loss"]
        finite = isinstance(loss, (int, float)) and math.isfinite(loss)
        parts.verdict(part, finite and (bool(fast) or parts.sizes is DRY_SIZES), f"loss {loss}, {summary['images_per_second']:.0f} images/s, {len(tried) - len(untried)} candidates tried, "
                      f"{len(rejected)} rejected")

    parts.run("resnet18: bfloat16, tuned, 50 steps", check, needs=60)


def replicas(parts, build):
    for name, flags in parts.sizes["replicas"]:
        def check(part, flags=flags):
            hashes = []
            for count in (1, 2, 4):
                summary = train(parts, part, build, 60, *flags, "--replicas-per-device", count, "--logical-shards", 4)
                if summary is None:
                    return
                hashes.append(summary["weights_sha256"])
            equal = len(set(hashes)) == 1
            parts.verdict(part, equal, f"weights {hashes[0][:16]}" if equal else f"weights differ: {hashes}")

        parts.run(f"{name}: 1, 2, 4 replicas on one GPU", check, needs=20)


def digits(parts, build, amp=None):
    """Trains in float32, or in mixed precision of type `amp`."""
    flags = ["--amp", "--amp-dtype", amp] if amp else []

    def check(part):
        summary = train(parts, part, build, 90, *parts.sizes["digits"], *flags)
        if summary is not None:
            parts.verdict(part, parts.sizes is DRY_SIZES or summary["top1"] >= DIGITS_TOP1, f"top-1 {summary['top1']:.4g}, "
                          f"{summary['images_per_second']:.0f} images/s")

    parts.run(f"digits, two epochs{', ' + amp if amp else ''}", check, needs=15)


def graphs(parts, build):
    def check(part):
        hashes = []
        for flags in ([], ["--graphs", "never"]):
            summary = train(parts, part, build, 60, *parts.sizes["graphs"], *flags)
            if summary is None:
                return
            hashes.append(summary["weights_sha256"])
        equal = hashes[0] == hashes[1]
        parts.verdict(part, equal, f"weights {hashes[0][:16]}" if equal else f"weights differ: {hashes}")

    parts.run("resnet18: steps as graphs and one by one", check, needs=20)
