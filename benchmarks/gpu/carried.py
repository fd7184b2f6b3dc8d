"""Prebuilt programs in one file: packs them, and checks whether they fit a host.

    python3 benchmarks/gpu/carried.py BUILD FILE.tar.xz    packs the programs in BUILD (./dev bundle calls it)
"""
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LARGEST_MIB = 50
NEEDED = ["apps/dp_train/dp_train", "apps/dp_train/libdp_cuda.so", "apps/dp_train/dp_peer_probe", "apps/dp_bench/dp_bench", "benchmarks/bench_step",
          "tests/cuda/test_gpu", "tests/cuda/test_real_libraries", "tests/kernels/test_ops", "tests/golden/test_golden", "tests/golden/test_mnist_steps",
          "tests/golden/test_resnet18", "benchmarks/bench_ops", "tests/cuda/op_bits", "tests/cuda/op_bits_simulated"]
SCRIPTS = ["pytorch_step.py", "pytorch_ops.py"]  # dp_bench expects them beside bench_step
GLIBC = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil)[.-]")
SOURCES = ("apps", "benchmarks", "data", "engine", "kernels", "models", "tests")
SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".cmake", "CMakeLists.txt")


def digest_of_sources(root=ROOT):
    """SHA-256 of all sources. Trees with equal digests build equal programs, even if their commits differ."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for file in sorted((root / folder).rglob("*")):
            if file.name.endswith(SUFFIXES) and file.is_file():
                digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def said(*words):
    return subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout


def is_elf(file):
    with open(file, "rb") as head:
        return head.read(4) == b"\x7fELF"


def cached(build, name):
    """The value of a CMake cache variable, or ""."""
    file = build / "CMakeCache.txt"
    found = re.search(rf"^{name}:\w+=(.*)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    return found[1] if found else ""


def toolkit_of(build):
    for file in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        if found := re.search(r'CMAKE_CUDA_COMPILER_VERSION "([\d.]+)"', file.read_text()):
            return found[1]
    return ""


def processor_flags():
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return sorted(found[1].split()) if found else []


def glibc_needed(files):
    versions = {tuple(map(int, text.split("."))) for file in files for text in re.findall(r"GLIBC_(\d+\.\d+)", said("readelf", "-V", file))}
    return ".".join(map(str, max(versions, default=(0, 0))))


def shared_libraries(files):
    """{name: file} of the shared libraries that the loader maps for these files, except glibc's."""
    found = {}
    for file in files:
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", said("ldd", file), re.MULTILINE):
            if not GLIBC.match(name):
                found[name] = pathlib.Path(path).resolve()
    return found


# ---- packing


def pack(build, out, commit, preset=9):
    """Returns the manifest. ValueError if a program is missing or the file is too large."""
    build, out = pathlib.Path(build), pathlib.Path(out)
    if missing := [name for name in NEEDED if not (build / name).is_file()]:
        raise ValueError(f"{build} lacks {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        stage = pathlib.Path(folder, "binaries")
        for name in NEEDED:
            place(build / name, stage / name)
        for name in SCRIPTS:
            place(ROOT / "benchmarks/programs" / name, stage / "benchmarks" / name)
        programs = [file for file in stage.rglob("*") if file.is_file() and is_elf(file)]
        for name, file in shared_libraries(build / file.relative_to(stage) for file in programs).items():
            place(file, stage / "lib" / name)
        files = sorted(file for file in stage.rglob("*") if file.is_file())
        elf = [file for file in files if is_elf(file)]
        manifest = {
            "commit": commit, "sources": digest_of_sources(), "machine": platform.machine(), "glibc": glibc_needed(elf),
            "processor": processor_flags() if cached(build, "DP_NATIVE") == "ON" else [],
            "architectures": re.findall(r"\d+", cached(build, "DP_CUDA_ARCHITECTURES")), "cuda": toolkit_of(build),
            "files": {str(file.relative_to(stage)): sha256(file) for file in files},
        }
        (stage / "manifest.json").write_text(json.dumps(manifest, indent=1))
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w:xz", preset=preset) as archive:
            archive.add(stage, "binaries")
    if out.stat().st_size > LARGEST_MIB << 20:
        raise ValueError(f"{out} has {out.stat().st_size / 2**20:.1f} MiB, more than {LARGEST_MIB}")
    return manifest


def place(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    if is_elf(target):
        subprocess.run(["strip", "--strip-unneeded", target], check=False, stderr=subprocess.DEVNULL)


# ---- on a host


def unfit(manifest, found, driver, root=ROOT):
    """The reason why the programs do not fit this host, or "". `found`: its GPUs. `driver`: the CUDA version of its
    driver, 13000 for 13.0."""
    here = platform.libc_ver()[1]
    number = lambda text: tuple(map(int, re.findall(r"\d+", text)))  # noqa: E731
    if manifest["sources"] != digest_of_sources(root):
        return f"they were built from other sources, of commit {manifest['commit']}"
    if manifest["machine"] != platform.machine():
        return f"they are for {manifest['machine']}, this is {platform.machine()}"
    if number(here) < number(manifest["glibc"]):
        return f"they need glibc {manifest['glibc']}, this host has {here or 'another libc'}"
    if lacks := sorted(set(manifest["processor"]) - set(processor_flags())):
        return f"they were built for another processor; this one lacks {', '.join(lacks[:5])}"
    for gpu in found:
        # Machine code runs on later devices of the same major compute capability.
        if not any(len(gpu.architecture) == len(a) and gpu.architecture[:-1] == a[:-1] and gpu.architecture >= a for a in manifest["architectures"]):
            return f"they are for sm_{', sm_'.join(manifest['architectures'])}, {gpu.name} is sm_{gpu.architecture}"
    if manifest["cuda"] and driver < 1000 * number(manifest["cuda"])[0]:
        return f"they need a driver for CUDA {number(manifest['cuda'])[0]}, this one is for {driver // 1000}.{driver % 1000 // 10}"
    return ""


def unpacked(file, folder, found, driver, root=ROOT):
    """(folder of the programs, their manifest, "") or (None, None, reason why they are not used)."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(file) as archive:
            for member in archive.getmembers():
                if member.name.split("/")[0] != "binaries" or ".." in member.name or not (member.isfile() or member.isdir()):
                    return None, None, f"{file} holds {member.name}"
            archive.extractall(folder)
        programs = pathlib.Path(folder, "binaries")
        manifest = json.loads((programs / "manifest.json").read_text())
        if why := unfit(manifest, found, driver, root):
            return None, None, why
        if wrong := [name for name, digest in manifest["files"].items() if sha256(programs / name) != digest]:
            return None, None, f"{wrong[0]} has changed since it was packed"
        done = subprocess.run([programs / NEEDED[0], "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False)
        if done.returncode != 0:
            return None, None, f"dp_train does not start here: {' '.join(done.stdout.split())[-200:]}"
        return programs, manifest, ""
    except (OSError, ValueError, KeyError, EOFError, tarfile.TarError, subprocess.SubprocessError) as error:
        return None, None, f"{type(error).__name__}: {error}"


def main():
    build, out = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    commit = said("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip() or "unknown"
    try:
        manifest = pack(build, out, commit)
    except ValueError as error:
        sys.exit(f"bundle: {error}")
    print(f"== {out}: {out.stat().st_size / 2**20:.1f} MiB, {len(manifest['files'])} files; sm_{', sm_'.join(manifest['architectures'])}, "
          f"CUDA {manifest['cuda']}, glibc {manifest['glibc']} or newer")


if __name__ == "__main__":
    main()
