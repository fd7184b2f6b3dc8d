"""Metadata of a GPU host's record (commit, date, device, driver, versions, command), and writing the record. Shared by
gpu.py and gpu_first.py. As a program: prints the PyTorch and the NVIDIA libraries of the Python that runs it."""

import ctypes
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
# NVIDIA's libraries in PyPI packages: dp's variable for the file, the names that dp loads, the folder in the package.
LIBRARIES = [("DP_CUDNN_LIBRARY", ["libcudnn.so.9"], "nvidia/cudnn/lib/"),
             ("DP_CUBLASLT_LIBRARY", ["libcublasLt.so.13", "libcublasLt.so.12"], "nvidia/*/lib/"),
             ("DP_NCCL_LIBRARY", ["libnccl.so.2"], "nvidia/nccl/lib/")]


def said(command, seconds=30):
    """The standard output of a program; "" if it does not exist, fails or times out."""
    try:
        return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              errors="replace", timeout=seconds, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def one_line(text, most=300):
    return " ".join(str(text).split())[:most]


# ---- facts


def commit_of(given=None):
    """The commit in dp_bench's format; "unknown" without git history."""
    return given or said(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) or "unknown"


def gpus():
    """[(name, driver, memory and clocks)] of the GPUs that nvidia-smi lists."""
    query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory"
    lines = said(["nvidia-smi", query, "--format=csv,noheader"]).splitlines()
    return [(*(word.strip() for word in line.split(",", 2)), "", "")[:3] for line in lines if line.strip()]


def driver_facts():
    found = gpus()
    facts = {f"GPU {i}": ", ".join(filter(None, (name, rest))) for i, (name, _, rest) in enumerate(found)}
    drivers = sorted({driver for _, driver, _ in found if driver})
    if not drivers and os.path.exists("/proc/driver/nvidia/version"):
        drivers = re.findall(r"\d+\.\d+[.\d]*", pathlib.Path("/proc/driver/nvidia/version").read_text(errors="replace"))[:1]
    if drivers:
        facts["driver"] = ", ".join(drivers)
    return facts


def toolkit():
    """The version of nvcc, searched in the folders that the build searches, or "none"."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for nvcc in filter(None, [os.environ.get("CUDACXX"), "nvcc", *(home and f"{home}/bin/nvcc" for home in homes)]):
        if found := re.search(r"\bV([\d.]+)", said([nvcc, "--version"])):
            return found[1]
    return "none"


def begun(program, arguments, commit=None):
    """A new record of a program, without figures."""
    facts = {"commit": commit_of(commit), **driver_facts(), "CUDA toolkit": toolkit(), "host": f"{platform.platform()}, {os.cpu_count()} cores"}
    if facts["commit"] == "unknown":
        print(f"{program}: the commit is unknown; name it with --commit HASH", file=sys.stderr)
    return {"program": f"{program}.py", "schema": 2, "command": shlex.join(["./dev", "bench", program, *arguments]),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "facts": facts}


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def torch_facts(torch):
    """The versions of PyTorch and its libraries. Needs no GPU."""
    nccl = getattr(torch.cuda, "nccl", None)
    try:
        nccl_version = ".".join(map(str, nccl.version()))
    except (AttributeError, RuntimeError, TypeError):
        nccl_version = "none"
    return {"PyTorch": torch.__version__, "PyTorch's CUDA": torch.version.cuda or "none", "PyTorch's cuDNN": torch.backends.cudnn.version() or "none",
            "PyTorch's NCCL": nccl_version, "Triton": version_of("triton"), "torchvision": version_of("torchvision"),
            "Python": platform.python_version()}


def package_libraries():
    """{variable: file} of NVIDIA's libraries in the packages of this Python."""
    found = {}
    for variable, names, place in LIBRARIES:
        files = [file for folder in sys.path if folder for name in names for file in sorted(pathlib.Path(folder).glob(place + name))]
        if files:
            found[variable] = str(files[0])
    return found


def asked_of(python):
    """(facts, {variable: file}) of another Python. It may lack PyTorch, or not exist."""
    try:
        done = subprocess.run([python, __file__], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              timeout=180, check=False)
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        return answer["facts"], answer["libraries"]
    except (OSError, subprocess.SubprocessError) as error:
        return {"PyTorch": f"none: {one_line(error)}"}, {}
    except (IndexError, KeyError, ValueError):
        return {"PyTorch": f"none: {one_line((done.stderr.strip().splitlines() or ['no answer'])[-1])}"}, {}


def loads(name):
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


def library_variables(of_packages):
    """The package libraries that dp cannot find by itself, so that both sides of a comparison have cuDNN."""
    return {variable: of_packages[variable] for variable, names, _ in LIBRARIES
            if variable in of_packages and not os.environ.get(variable) and not any(loads(name) for name in names)}


# ---- on the disk


def replaced(path, text):
    """Replaces a file atomically: it always has the complete old or new content."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def write(out, record, page):
    """Writes OUT.json, then OUT.md with page(record). An exception in page() does not lose the figures."""
    out.parent.mkdir(parents=True, exist_ok=True)
    replaced(out.with_name(out.name + ".json"), json.dumps(record))
    try:
        text = page(record)
    except Exception as error:  # an unexpected report must not lose the record
        traceback.print_exc()
        text = f"# No page\n\nThe tables could not be made ({type(error).__name__}: {one_line(error)}); {out.name}.json has every figure.\n"
    replaced(out.with_name(out.name + ".md"), text)


def table(heads, rows):
    """The lines of a Markdown table, followed by an empty line."""
    def line(cells):
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"

    return [line(heads), "|" + "---|" * len(heads), *(line(row) for row in rows), ""]


def fact_lines(facts):
    return [*(f"- {key}: {one_line(value)}" for key, value in facts.items()), ""]


def main():
    libraries = package_libraries()
    try:
        import torch
        facts = torch_facts(torch)
    except (ImportError, OSError) as error:
        facts = {"PyTorch": f"none: {one_line(error)}"}
    print(json.dumps({"facts": facts, "libraries": libraries}))


if __name__ == "__main__":
    main()
