"""Finds NVIDIA's libraries in this Python's packages. The loader does not search there.

    export LD_LIBRARY_PATH=$(python3 benchmarks/gpu/libraries.py)
"""
import os
import pathlib
import sys

# Name in `dp_train env`: (possible files, variable that overrides the file).
WANTED = {
    "cuDNN": (("libcudnn.so.9",), "DP_CUDNN_LIBRARY"),
    "cuBLASLt": (("libcublasLt.so.13", "libcublasLt.so.12"), "DP_CUBLASLT_LIBRARY"),
}


def folders(path=None):
    """nvidia/*/lib (e.g. nvidia/cu13/lib) in every folder of sys.path that has shared libraries there."""
    found = []
    for entry in sys.path if path is None else path:
        for folder in sorted(pathlib.Path(entry or ".").resolve().glob("nvidia/*/lib")):
            if folder not in found and any(folder.glob("*.so*")):
                found.append(folder)
    return found


def with_libraries(environment, path=None):
    """The environment with these folders first in LD_LIBRARY_PATH: cuDNN loads its other libraries by bare names."""
    places = [str(folder) for folder in folders(path)]
    given = environment.get("LD_LIBRARY_PATH")
    if not places:
        return dict(environment)
    return {**environment, "LD_LIBRARY_PATH": ":".join(places + ([given] if given else []))}


def unused(described, environment, path=None):
    """Messages about libraries in these folders that dp does not use. `described`: the output of `dp_train env`."""
    missing = []
    for name, (files, variable) in WANTED.items():
        there = [folder / file for folder in folders(path) for file in files if (folder / file).exists()]
        lines = [line for line in described.splitlines() if line.startswith(name + " ")]
        uses = any(not line.split(None, 1)[1].startswith("none:") for line in lines)
        if there and not uses and not environment.get(variable):
            missing.append(f"{name} is not used, but {there[0]} is there")
    return missing


if __name__ == "__main__":
    print(with_libraries(os.environ).get("LD_LIBRARY_PATH", ""))
