"""benchmarks/gpu.py, tried out on the CPU: that its commands run, that its tables hold what was measured, and that what can not be
measured says why. Arguments: the source folder, the build folder."""

import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE, BUILD = map(pathlib.Path, sys.argv[1:3])


def run(out, *more):
    command = [sys.executable, str(SOURCE / "benchmarks/gpu.py"), "--build", str(BUILD), "--out", str(out), "--rounds", "1", "--seconds", "0.02", *more]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "there/record")
        done = run(out, "--cpu", "1", "--quick", "--batches", "8", "--networks", "MNIST", "--only", "step,layers", "--variants", "plan,dp1",
                   "--python", "/nonexistent")
        assert done.returncode == 0, done.stderr
        record, page = json.loads(out.with_suffix(".json").read_text()), out.with_suffix(".md").read_text()
        assert [result["section"] for result in record["results"]] == ["step", "layers"], record
        assert not any(result["why"] for result in record["results"]), record
        row = next(line for line in page.splitlines() if line.startswith("| MNIST convnet, 28x28 | 8 | fp32"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        plan, own, images = float(cells[3]), float(cells[4]), float(cells[5].replace(",", ""))
        assert plan > 0 and abs(images - 8e3 / own) <= 1 + images * 1e-3, row
        assert cells[7] == cells[8] == "-", row  # no PyTorch there
        layers = page[page.index("## Layers"):]
        assert "conv2d_backward_weights" in layers and "linear_forward" in layers, page
        assert "plan / dp (at least 0.990)" in page, page
        failed = run(pathlib.Path(folder, "none"), "--cpu", "1", "--batches", "0", "--networks", "MNIST", "--only", "step")
        assert failed.returncode != 0 and "nothing could be measured" in failed.stderr, failed.stderr
        listed = run(pathlib.Path(folder, "list"), "--list")
        assert listed.returncode == 0 and listed.stdout.count("dp_bench step") > 20, listed.stdout
        assert not pathlib.Path(folder, "list.json").exists()
        assert run(pathlib.Path(folder, "bad"), "--only", "speed").returncode == 2


main()
