"""NVIDIA's libraries in this Python's packages, where the loader does not look by itself.

    export LD_LIBRARY_PATH=$(python3 benchmarks/gpu/libraries.py)
"""
import os
import pathlib
import sys

# What `dp_train env` calls a library: the files that it may be, and the variable that names another.
WANTED = {
    "cuDNN": (("libcudnn.so.9",), "DP_CUDNN_LIBRARY"),
    "cuBLASLt": (("libcublasLt.so.13", "libcublasLt.so.12"), "DP_CUBLASLT_LIBRARY"),
}


def folders(path=None):
    """nvidia/*/lib of every folder that this Python searches; nvidia/cu13/lib is one of them."""
    found = []
    for entry in sys.path if path is None else path:
        for folder in sorted(pathlib.Path(entry or ".").resolve().glob("nvidia/*/lib")):
            if folder not in found and any(folder.glob("*.so*")):
                found.append(folder)
    return found


def with_libraries(environment, path=None):
    """The environment with these folders first: cuDNN loads libraries of the same release from beside it by bare names."""
    places = [str(folder) for folder in folders(path)]
    given = environment.get("LD_LIBRARY_PATH")
    if not places:
        return dict(environment)
    return {**environment, "LD_LIBRARY_PATH": ":".join(places + ([given] if given else []))}


def unused(described, environment, path=None):
    """Of what `dp_train env` printed: the libraries that it does not use although they are in these folders."""
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
