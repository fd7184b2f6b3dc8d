"""Tests benchmarks/gpu/gpu.py on the CPU with the real dp_bench: its commands run, its tables have the measured values,
and missing values have a reason. Arguments: the source folder, the build folder."""

import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE, BUILD = map(pathlib.Path, sys.argv[1:3])


def run(out, *more):
    command = [sys.executable, str(SOURCE / "benchmarks/gpu/gpu.py"), "--build", str(BUILD), "--out", str(out), "--rounds", "1", "--seconds", "0.02", *more]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


LOG = """\
conv2d_forward x (8)\town:gemm 64x64\t30.000
conv2d_forward x (8)\town:mma 128x64\t12.500
conv2d_forward x (8)\town:mma 64x64\t14.000
conv2d_forward x (8)\tcudnn:eng12 k2=3\t-\tloses NaN
conv2d_forward x (8)\tcudnn:eng13\t-\tnot tried
conv2d_forward x (8)\tcudnn:eng14\t20.000\ttimed without a graph
norm_conv2d_forward x (8)\tunfused: own:gemm 64x64\t40.000
norm_conv2d_forward x (8)\tunfused: own:mma 128x64\t22.500
norm_conv2d_forward x (8)\town:mma 128x64 fused\t16.000
norm_conv2d_forward x (8)\tcudnn:eng2 fused\t15.250
norm_conv2d_forward x (8)\tcud"""


def check_candidates():
    """A log of trials gives a row for each problem, with the fastest candidate of each kind."""
    sys.path.insert(0, str(SOURCE / "benchmarks/gpu"))
    import gpu_measure  # noqa: PLC0415
    import gpu_tables  # noqa: PLC0415

    plain, fused = gpu_measure.candidates_report(LOG)["sections"][0]["rows"]
    assert (plain["own"], plain["own_tensor"], plain["library"], plain["refused"]) == (30.0, 12.5, 20.0, 1), plain
    assert plain["fastest"] == "own:mma 128x64", plain
    assert (fused["in_turn"], fused["own_fused"], fused["library_fused"]) == (22.5, 16.0, 15.25), fused
    assert fused["fastest"] == "cudnn:eng2 fused", fused
    result = {"about": {"network": "a network", "batch": 8, "type": "bf16"}, "report": gpu_measure.candidates_report(LOG), "why": "not finished"}
    lines = gpu_tables.layer_lines(result)
    assert any("22.500" in line and "cudnn:eng2 fused" in line for line in lines), lines
    assert any("not finished" in line for line in lines), lines
    torn = gpu_measure.candidates_report("a problem\town:gemm 64x64\t30.5\na problem\town:mma 64x64\t3")["sections"][0]["rows"][0]
    assert (torn["own"], torn["own_tensor"]) == (30.5, None), torn  # 3 may be the beginning of 31.2


def main():
    check_candidates()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "there/record")
        done = run(out, "--cpu", "1", "--quick", "--batches", "8", "--networks", "MNIST", "--only", "step,layers,ways", "--variants", "plan,dp1",
                   "--python", "/nonexistent")
        assert done.returncode == 0, done.stderr
        record, page = json.loads(out.with_suffix(".json").read_text()), out.with_suffix(".md").read_text()
        assert [result["section"] for result in record["results"]] == ["step", "ways", "layers"], record
        # Candidates need a GPU.
        assert [result["why"] for result in record["results"]] == ["", "no candidate was timed", ""], record
        row = next(line for line in page.splitlines() if line.startswith("| MNIST convnet, 28x28 | 8 | fp32"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        plan, own, images = float(cells[3]), float(cells[4]), float(cells[5].replace(",", ""))
        assert plan > 0 and abs(images - 8e3 / own) <= 1 + images * 1e-3, row
        assert cells[7] == cells[8] == "-", row  # no PyTorch there
        layers = page[page.index("## Layers"):]
        assert "conv2d_backward_weights" in layers and "linear_forward" in layers, page
        assert "plan / dp (at least 0.990)" in page, page
        assert "- PyTorch: none: " in page and "| ways: MNIST convnet, 28x28, batch 8, fp32 | all | no candidate was timed |" in page, page
        failed = run(pathlib.Path(folder, "none"), "--cpu", "1", "--batches", "0", "--networks", "MNIST", "--only", "step")
        assert failed.returncode != 0 and "nothing could be measured" in failed.stderr, failed.stderr
        listed = run(pathlib.Path(folder, "list"), "--list")
        assert listed.returncode == 0 and listed.stdout.count("dp_bench step") > 20, listed.stdout
        sections = [line.split(":")[0] for line in listed.stdout.splitlines()]
        # The virtual replicas come before the steps of other types.
        assert max(i for i, name in enumerate(sections) if name == "virtual") < 20 < len(sections), sections
        assert not pathlib.Path(folder, "list.json").exists()
        assert run(pathlib.Path(folder, "bad"), "--only", "speed").returncode == 2


main()
