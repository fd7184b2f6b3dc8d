"""Tests gpu-all with the real dp_train and dp_bench on a simulated GPU, and a stand-in for PyTorch: the command lines
work, the report is correct, and a second call repeats nothing. The test programs are fakes that pass; they are tested
elsewhere. Arguments: the source folder, the build folder."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD = map(pathlib.Path, sys.argv[1:3])
TOOL = SOURCE / "benchmarks/gpu"
sys.path.insert(0, str(TOOL))
sys.dont_write_bytecode = True

import carried  # noqa: E402

REAL = {"apps/dp_train/dp_train": "apps/dp_train/dp_train", "apps/dp_train/libdp_cuda.so": "tests/cuda/libdp_cuda.so",
        "apps/dp_train/dp_peer_probe": "tests/cuda/dp_peer_probe", "apps/dp_bench/dp_bench": "apps/dp_bench/dp_bench",
        "benchmarks/bench_step": "benchmarks/bench_step"}
PYTHON = """#!/bin/sh
export PYTHONPATH={source}/tests/bench/fake_torch FAKE_TORCH=
case "$1" in *pytorch_step.py) shift; exec {python} -B {source}/tests/gpu/stand_in_pytorch_step.py "$@" ;; esac
exec {python} -B "$@"
"""
CALL = """
import pathlib, sys
sys.path.insert(0, {here!r})
import gpu_all
home = pathlib.Path({home!r})
gpu_all.ROOT, gpu_all.CARRIED = home, home / "binaries.tar.xz"
sys.exit(gpu_all.main(["--dry", "--commit", "abc", "--python", str(home / "python"), "--limit", "3000", *sys.argv[1:]]))
"""


def script(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def main():
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        built = home / "built"
        for name in carried.NEEDED:
            if name in REAL:
                (built / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(BUILD / REAL[name], built / name)
            else:
                script(built / name, '#!/bin/sh\ncase "$1" in --list*) echo "a case" ;; esac\n')
        (built / "CMakeCache.txt").write_text("DP_NATIVE:BOOL=ON\nDP_CUDA_ARCHITECTURES:STRING=90\n")
        script(home / "python", PYTHON.format(source=SOURCE, python=sys.executable))
        script(home / "bin/compute-sanitizer", "#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n")
        carried.pack(built, home / "binaries.tar.xz", "abc", preset=0)
        environment = {**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}", "DP_SIMULATED_GPUS": "1", "DP_STARTED_IN": str(home),
                       "LD_LIBRARY_PATH": ":".join(filter(None, [str(BUILD / "tests/cuda"), os.environ.get("LD_LIBRARY_PATH")])),
                       "DP_NCCL_LIBRARY": "/nonexistent", "DP_CUDNN_LIBRARY": "/nonexistent", "DP_CUBLASLT_LIBRARY": "/nonexistent"}
        for name in ("XDG_CACHE_HOME", "DP_PLUGIN_PATH", "OUT"):
            environment.pop(name, None)

        def call(*words):
            done = subprocess.run([sys.executable, "-B", "-c", CALL.format(here=str(TOOL), home=str(home)), *words], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False)
            return done.returncode, done.stdout

        status, output = call("--out", "a")
        report = json.loads((home / "a/report.json").read_text())
        parts = {part["name"]: part for part in report["parts"]}
        assert status == 0, output + (home / "a/report.md").read_text()
        assert report["finished"] and report["passed"] and "simulated GPU 0" in report["gpus"], report
        assert "cuda:0" in report["environment"] and "prebuilt" in report["programs"], report
        for kind, theirs in (("bf16, compared with eager", "torch-cl"), ("fp16, compared with eager", "torch-cl"), ("bf16, compared with compiled", "torch-compiled")):
            part = parts[f"steps, {kind} PyTorch"]
            assert f"; {theirs} " in part["detail"] and "times as long" in part["detail"], part
        assert "candidates tried" in parts["resnet18: bfloat16, tuned, 50 steps"]["detail"], parts
        assert "| MLP, 8x8 | 8 | fp16 |" in (home / "a/measured.md").read_text()
        status, output = call("--out", "b", "--continue", "a")
        # All parts except the programs, which are unpacked again.
        assert status == 0 and output.count(" in an earlier call") == len(parts) - 1, output


main()
