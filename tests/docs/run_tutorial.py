"""run_tutorial.py PAGE DP_TRAIN PYTHON: runs the commands of a tutorial, in their order, in an empty folder.

Blocks with the language sh are run by bash, blocks with python by PYTHON. console is for other machines, text and cpp
are not run. The folder has flowers/, small images of two classes. From the first block on that needs a module of Python
or the ONNX plugin and does not find it, nothing is run: the exit code is then 4 (skipped).
"""
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

LANGUAGES = ["sh", "python", "console", "text", "cpp", "cmake"]


def blocks(page):
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)


def write_png(path, side, seed):
    noise = random.Random(seed)
    rows = b"".join(b"\0" + noise.randbytes(3 * side) for _ in range(side))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def missing_module(text, python, folder):
    """The first module that `text` imports and that neither PYTHON nor the folder has."""
    for name in re.findall(r"^(?:import|from) (\w+)", text, re.M):
        found = (folder / f"{name}.py").exists()
        if not found and subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode:
            return name


def main(page, dp_train, python):
    skipped = []
    plugin = pathlib.Path(dp_train).with_name("libdp_onnx.so")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part, count in ("train", 8), ("val", 4):
            for kind in "daisy", "rose":
                for i in range(count):
                    write_png(folder / "flowers" / part / kind / f"{i}.png", 64, f"{part}{kind}{i}")
        (folder / "bin").mkdir()
        (folder / "bin/dp_train").symlink_to(pathlib.Path(dp_train).resolve())
        environment = dict(os.environ, PATH=f"{folder}/bin:{os.environ['PATH']}",
                           MASTER_PORT=str(20000 + os.getpid() % 10000))
        for language, text in blocks(pathlib.Path(page).read_text()):
            assert language in LANGUAGES, f"a block has the language '{language}', not one of {LANGUAGES}"
            # Nothing is downloaded in tests.
            text = text.replace('weights="DEFAULT"', "weights=None")
            if language == "sh":
                absent = None if plugin.exists() or ".onnx" not in text else "ONNX plugin"
                command = ["bash", "-euo", "pipefail", "-c", text]
            elif language == "python":
                absent = missing_module(text.split("'''")[0], python, folder)
                command = [python, "-c", text]
            else:
                continue
            if absent or skipped:  # later blocks need what earlier ones wrote
                skipped.append(f"no {absent}" if absent else "it needs a block before it")
                continue
            run = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
            if run.returncode:
                sys.exit(f"{page}: exit code {run.returncode} of\n{text}\n{run.stdout}")
    if skipped:
        print(f"skipped: {len(skipped)} blocks of {page}: {skipped[0]}")
        sys.exit(4)


if __name__ == "__main__":
    main(*sys.argv[1:])
