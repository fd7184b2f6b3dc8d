"""What the record of a GPU host says beside its figures (commit, date, device, driver, versions, command), and how it gets to the disk. Shared by
gpu.py and gpu_first.py. Run as a program it says which PyTorch, and which of NVIDIA's libraries, the Python that runs it has."""

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
# Where PyPI's packages have what dp asks the loader for: the variable that names a file, the name it is asked for by, where it lies.
LIBRARIES = [("DP_CUDNN_LIBRARY", ["libcudnn.so.9"], "nvidia/cudnn/lib/"),
             ("DP_CUBLASLT_LIBRARY", ["libcublasLt.so.13", "libcublasLt.so.12"], "nvidia/*/lib/"),
             ("DP_NCCL_LIBRARY", ["libnccl.so.2"], "nvidia/nccl/lib/")]


def said(command, seconds=30):
    """What a program prints; nothing where it is not there, fails or hangs."""
    try:
        return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              errors="replace", timeout=seconds, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def one_line(text, most=300):
    return " ".join(str(text).split())[:most]


# ---- facts


def commit_of(given=None):
    """As dp_bench names it; a tree without its history can not say it."""
    return given or said(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) or "unknown"


def gpus():
    """A line of (name, driver, the rest) for each GPU that nvidia-smi lists."""
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
    """nvcc's version, looked for where the build looks."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for nvcc in filter(None, [os.environ.get("CUDACXX"), "nvcc", *(home and f"{home}/bin/nvcc" for home in homes)]):
        if found := re.search(r"\bV([\d.]+)", said([nvcc, "--version"])):
            return found[1]
    return "none"


def begun(program, arguments, commit=None):
    """A record of a program that begins now, without figures."""
    facts = {"commit": commit_of(commit), **driver_facts(), "CUDA toolkit": toolkit(), "host": f"{platform.platform()}, {os.cpu_count()} cores"}
    if facts["commit"] == "unknown":
        print(f"{program}: no commit is known here; --commit HASH says what is measured", file=sys.stderr)
    return {"program": f"{program}.py", "schema": 2, "command": shlex.join(["./dev", "bench", program, *arguments]),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "facts": facts}


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def torch_facts(torch):
    """What this PyTorch is made with. It need not see a GPU."""
    nccl = getattr(torch.cuda, "nccl", None)
    try:
        nccl_version = ".".join(map(str, nccl.version()))
    except (AttributeError, RuntimeError, TypeError):
        nccl_version = "none"
    return {"PyTorch": torch.__version__, "PyTorch's CUDA": torch.version.cuda or "none", "PyTorch's cuDNN": torch.backends.cudnn.version() or "none",
            "PyTorch's NCCL": nccl_version, "Triton": version_of("triton"), "torchvision": version_of("torchvision"),
            "Python": platform.python_version()}


def package_libraries():
    """{variable: file} of NVIDIA's libraries that are packages of this Python."""
    found = {}
    for variable, names, place in LIBRARIES:
        files = [file for folder in sys.path if folder for name in names for file in sorted(pathlib.Path(folder).glob(place + name))]
        if files:
            found[variable] = str(files[0])
    return found


def asked_of(python):
    """(facts, {variable: file}) of another Python, which need not have PyTorch, nor be there."""
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
    """Those libraries of a Python's packages that dp would not find by itself: both sides of a comparison shall have a cuDNN."""
    return {variable: of_packages[variable] for variable, names, _ in LIBRARIES
            if variable in of_packages and not os.environ.get(variable) and not any(loads(name) for name in names)}


# ---- on the disk


def replaced(path, text):
    """A reader, or a kill, finds the old file or the new one, whole."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def write(out, record, page):
    """OUT.json, and OUT.md as `page` makes it of the record: figures must not be lost over a table."""
    out.parent.mkdir(parents=True, exist_ok=True)
    replaced(out.with_name(out.name + ".json"), json.dumps(record))
    try:
        text = page(record)
    except Exception as error:  # whatever a report that nobody foresaw does to a table
        traceback.print_exc()
        text = f"# No page\n\nThe tables could not be made ({type(error).__name__}: {one_line(error)}); {out.name}.json has every figure.\n"
    replaced(out.with_name(out.name + ".md"), text)


def table(heads, rows):
    """Lines of Markdown, one empty behind them."""
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
