"""Parts under NVIDIA's compute-sanitizer."""
import pathlib
import re
import shutil
import subprocess

from cases import tested
from checks import program

# Op tests that run every kernel of the networks' ops, with small tensors, in float32 and 16 bits.
OPS = [
    "accumulate adds*", "an addition adds*", "average pools are means*", "convolutions at the edges*",
    "dropout drops*", "fill writes*", "gradients may be written over*", "images gathered on a device have*", "in evaluation a max-pool*",
    "linear layers agree*", "merging skips*", "mixed precision: batch*", "mixed precision: convolutions*", "mixed precision: linear*",
    "mixed precision: the update*", "softmax cross-entropy agrees*", "the first of equal maxima*", "the norm is that*",
    "the SGD update agrees*", "the statistics of two or three parts*", "evaluation normalises*", "Reorder into*", "ReLU keeps*",
    "one op updates the running values*",
    # All of fused_layers_test.cpp.
    "a linear layer with its dropout*", "a convolution with its pool*", "a NaN passes a convolution with its pool*",
    "a linear layer with the loss*", "a data gradient with ReLU's mask*", "a linear layer's data gradient with the pool's*",
    "the fused gradients of a linear layer*",
]
# Kernels that only autotuning selects, with a batch normalisation.
TENSOR_CORES = ["own kernels on tensor cores: 64 to 64 channels of 8x8*", "own kernels on tensor cores: 8 to 8 channels of 5x5*"]
TRAINING = ["GPU: few steps of both narrow networks", "GPU: few steps in bfloat16 on tensor cores"]
FOUND = 9  # exit status of the sanitizer if it reports errors
NCCL_ERRORS = (704, 209)  # peer access already enabled, no kernel image for the device: NCCL handles these itself
TOOLS = (("memcheck", "racecheck"), ("initcheck", "synccheck"))


def sanitizer_of(parts):
    path = parts.environment.get("PATH", "")
    found = shutil.which("compute-sanitizer", path=path)
    nvcc = parts.environment.get("CUDACXX") or shutil.which("nvcc", path=path) or "/usr/local/cuda/bin/nvcc"
    beside = pathlib.Path(nvcc).resolve().parent / "compute-sanitizer"
    return found or (str(beside) if beside.exists() else None)


def findings(output):
    """The sanitizer's findings, each a list of lines without the margin: the error, then its location."""
    found = []
    for line in output.splitlines():
        if line.startswith("========= ") and line[len("========= "):].strip():
            text = line[len("========= "):]
            if not text.startswith(" "):
                found.append([text])
            elif found:
                found[-1].append(text.strip())
    return [lines for lines in found if "COMPUTE-SANITIZER" not in lines[0] and "SUMMARY" not in lines[0]]


def is_of_nccl(lines):
    """Whether the finding is one of NCCL_ERRORS in a call by NCCL."""
    return any(f"(error {number})" in lines[0] for number in NCCL_ERRORS) and any("libnccl" in line for line in lines[1:])


def reason(status, output):
    """The reason why a run under the sanitizer did not pass, or ""."""
    lines = output.splitlines()
    of_nccl = sum(map(is_of_nccl, findings(output)))
    closing = [line.strip("= ") for line in lines if "SUMMARY" in line]
    if "No tests ran" in output:
        return "no test ran"
    if not closing:
        return f"exit status {status}, without a summary"
    counts = [re.search(r": (\d+) (?:error|hazard)", line) for line in closing]
    if not all(counts) or sum(int(count[1]) for count in counts) > of_nccl:
        found = [finding[0] for finding in findings(output) if not is_of_nccl(finding)]
        return "; first ".join([closing[-1], *found[:1]])
    checks = [line.strip() for line in lines if line.startswith(("test cases:", "All tests passed"))]
    tests_passed = status == 0 or status == FOUND and of_nccl and checks and "failed" not in checks[-1]
    if not tests_passed:
        # The sanitizer reported no errors of ours, so the tests failed.
        return f"the sanitizer found nothing, but tests failed: {checks[-1] if checks else f'exit status {status}'}"
    return ""


def sanitize(parts, build, tool):
    def check(part):
        sanitizer = sanitizer_of(parts)
        if sanitizer is None:
            part.result, part.detail = "skipped", "no compute-sanitizer in PATH or next to nvcc"
            return
        runs = ((tested(build, "cuda", "test_real_libraries"), TENSOR_CORES), (tested(build, "kernels", "test_ops"), OPS),
                (tested(build, "cuda", "test_gpu"), TRAINING))
        wrong = []
        # Lazy loading: the tool patches each loaded kernel, which takes time.
        for binary, names in runs:
            try:
                why = reason(*parts.command(
                    part, [sanitizer, "--tool", tool, "--error-exitcode", FOUND, binary, ",".join(names)], 200, DP_TESTED_KINDS="cuda",
                    OMP_NUM_THREADS=2, DP_PLUGIN_PATH=program(build, "libdp_cuda.so"), CUDA_MODULE_LOADING="LAZY"))
            except subprocess.TimeoutExpired as expired:  # continue with the next program
                why = f"stopped after {expired.timeout:.0f} s"
            if why:
                wrong.append(f"{binary.name}: {why}")
        parts.verdict(part, not wrong, "; ".join(wrong) or f"nothing found in {len(runs)} programs")

    parts.run(f"compute-sanitizer {tool}", check, needs=60)
