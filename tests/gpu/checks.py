"""What gpu-check runs."""
import json
import os
import pathlib
import shutil
import tempfile
import threading
import xml.etree.ElementTree

CORES = os.cpu_count() or 2
# Cases of the op tests that reach every kernel with small tensors.
SANITIZED_OPS = [
    "accumulate adds*", "an addition adds*", "average pools are means*", "convolutions at the edges*", "dropout drops*",
    "fill writes*", "gradients may be written over*", "images gathered on a device are*", "in evaluation a max-pool*",
    "linear layers agree*", "merging skips*", "softmax cross-entropy agrees*", "the first of equal maxima*",
    "the norm is that*", "the SGD update agrees*", "Reorder into*", "ReLU keeps*",
]
SANITIZED_TRAINING = ["GPU: few steps of both narrow networks"]
DIGITS_TOP1 = 90  # percent, after two epochs


def program(build, name):
    return build / "apps" / "dp_train" / name


def tested(build, folder, name):
    return build / "tests" / folder / name


def build(parts, root, folder, gpus):
    architectures = ";".join(sorted({gpu.architecture for gpu in gpus}))

    def check(part):
        status, output = parts.command(part, [root / "dev", "deps"], 120, root)
        if status == 0:
            status, output = parts.command(
                part, ["cmake", "--preset", "release", "-B", folder, "-DDP_CUDA=ON", "-DDP_BUILD_TESTS=ON",
                       f"-DDP_CUDA_ARCHITECTURES={architectures}"], 120, root)
        if status == 0 and "CUDA backend is left out" in output:
            return parts.verdict(part, False, "CMake found no CUDA toolkit that fits: CUDACXX, PATH or /usr/local/cuda/bin must have "
                                 "the nvcc of CUDA 12.4 or newer")
        if status == 0:
            status, output = parts.command(part, ["cmake", "--build", folder, "-j", CORES], 360, root)
        warnings = output.count("warning:")
        parts.verdict(part, status == 0, f"for sm_{architectures}, {warnings} warnings" if status == 0
                      else f"exit status {status}")

    return parts.run("build", check)


def environment(parts, build):
    text = []

    def check(part):
        status, output = parts.command(part, [program(build, "dp_train"), "env"], 240)  # many GPUs have many pairs to probe
        print(output)
        text.append(output)
        parts.verdict(part, status == 0, f"exit status {status}")

    parts.run("dp_train env", check)
    return "".join(text)


def ctest(parts, name, build, limit, jobs, *selection):
    def check(part):
        results = build / "logs" / (name.replace(" ", "-") + ".xml")
        results.unlink(missing_ok=True)
        status, output = parts.command(
            part, ["ctest", "--test-dir", build, "--no-tests=error", "--output-on-failure", "-j", jobs, "--timeout", "120",
                   "--output-junit", results, *selection], limit)
        cases = xml.etree.ElementTree.parse(results).getroot().findall("testcase")
        failed = [case.get("name") for case in cases if case.get("status") not in ("run", "notrun", "disabled")]
        skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
        part.failed_tests, part.skipped_tests = failed, skipped
        detail = f"{len(cases) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped"
        # What a GPU is here for must not be skipped.
        needed = "-L" in selection and bool(skipped)
        parts.verdict(part, status == 0 and not failed and not needed, detail)

    parts.run(name, check)


def gpu_tests(parts, build):
    ctest(parts, "GPU tests", build, 150, 2, "-L", "^gpu$")


def all_tests(parts, build):
    ctest(parts, "all tests", build, 240, max(2, CORES // 2), "-LE", "^(slow|simt-slow|gpu|embed)$")


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
                      "not compared bit by bit: softmax_cross_entropy, batch_norm (functions and contractions that each side "
                      "rounds in its own way); the tests compare them with the reference"]
        detail = f"{len(simulated)} results of {len(ops)} ops, {len(different)} differ"
        parts.verdict(part, status == 0 and real_status == 0 and len(simulated) > 0 and not different, detail)

    parts.run("simulated and real bits", check)


def train(parts, part, build, limit, *flags):
    """Runs dp_train and returns its summary, or None with the part's detail set."""
    with tempfile.TemporaryDirectory() as folder:
        summary = pathlib.Path(folder) / "summary.json"
        status, output = parts.command(
            part, [program(build, "dp_train"), "--gpus", "0", "--quiet", "--summary", summary, "--output-dir",
                   pathlib.Path(folder) / "run", *flags], limit)
        if status == 0:
            return json.loads(summary.read_text())
        last = (output.strip().splitlines() or ["no output"])[-1]
        parts.verdict(part, False, f"exit status {status}: {last}")
        return None


def replicas(parts, build):
    for name, flags in (("mnist_convnet", ["--dataset", "digits"]),
                        ("resnet18", ["--model", "resnet18", "--dataset", "synthetic", "--bn", "sync", "-b", "32"])):
        def check(part, flags=flags):
            hashes = []
            for count in (1, 2, 4):
                summary = train(parts, part, build, 60, *flags, "--replicas-per-device", count, "--logical-shards", 4,
                                "--max-steps", 20)
                if summary is None:
                    return
                hashes.append(summary["weights_sha256"])
            equal = len(set(hashes)) == 1
            parts.verdict(part, equal, f"weights {hashes[0][:16]}" if equal else f"weights differ: {hashes}")

        parts.run(f"{name}: 1, 2, 4 replicas on one GPU", check)


def digits(parts, build, amp=None):
    """Trains in float32, or in mixed precision of that type."""
    flags = ["--amp", "--amp-dtype", amp] if amp else []

    def check(part):
        summary = train(parts, part, build, 90, "--dataset", "digits", "--epochs", 2, *flags)
        if summary is not None:
            parts.verdict(part, summary["top1"] >= DIGITS_TOP1, f"top-1 {summary['top1']:.4g}, "
                          f"{summary['images_per_second']:.0f} images/s")

    parts.run(f"digits, two epochs{', ' + amp if amp else ''}", check)


def graphs(parts, build):
    def check(part):
        hashes = []
        for flags in ([], ["--no-graphs"]):
            summary = train(parts, part, build, 60, "--model", "resnet18", "--dataset", "synthetic", "-b", "32", "--amp", "--no-autotune",
                            "--max-steps", 50, *flags)
            if summary is None:
                return
            hashes.append(summary["weights_sha256"])
        equal = hashes[0] == hashes[1]
        parts.verdict(part, equal, f"weights {hashes[0][:16]}" if equal else f"weights differ: {hashes}")

    parts.run("resnet18: steps as graphs and one by one", check)


def sanitizer_of(parts):
    path = parts.environment.get("PATH", "")
    found = shutil.which("compute-sanitizer", path=path)
    nvcc = parts.environment.get("CUDACXX") or shutil.which("nvcc", path=path) or "/usr/local/cuda/bin/nvcc"
    beside = pathlib.Path(nvcc).resolve().parent / "compute-sanitizer"
    return found or (str(beside) if beside.exists() else None)


def sanitizers(parts, build):
    sanitizer = sanitizer_of(parts)

    def check(part, tool):
        if sanitizer is None:
            part.result, part.detail = "not run", "no compute-sanitizer in PATH or beside nvcc"
            return
        # Cases by name, between commas.
        runs = ((tested(build, "kernels", "test_ops"), SANITIZED_OPS), (tested(build, "cuda", "test_gpu"), SANITIZED_TRAINING))
        for words in ([binary, ",".join(names)] for binary, names in runs):
            status, output = parts.command(
                part, [sanitizer, "--tool", tool, "--error-exitcode", "9", *words], 150, DP_TESTED_KINDS="cuda",
                OMP_NUM_THREADS=2, DP_PLUGIN_PATH=program(build, "libdp_cuda.so"))
            closing = [line for line in output.splitlines() if "SUMMARY" in line]
            if status != 0 or not closing or "No tests ran" in output:
                wrong = [line for line in output.splitlines() if line.startswith("========= ")]
                first = next((line for line in wrong if "COMPUTE-SANITIZER" not in line), f"exit status {status}")
                return parts.verdict(part, False, first.strip("= "))
        parts.verdict(part, True, closing[-1].strip("= "))

    def run(tool):
        parts.run(f"compute-sanitizer {tool}", lambda part: check(part, tool))

    threads = [threading.Thread(target=run, args=(tool,)) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
