"""Rehearses ./dev gpu-visit with fake programs on a fake GPU: order, limits, a kill at each step, and what a failed
test case changes for later steps."""
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TOOL = SOURCE / "benchmarks/gpu"
sys.path.insert(0, str(TOOL))
import carried  # noqa: E402
import steps  # noqa: E402

CALL = """
import os, pathlib, sys
sys.dont_write_bytecode = True
sys.path.insert(0, {tool!r})
import carried, gpus, steps, visit
home = pathlib.Path({home!r})
(home / "pid").write_text(str(os.getpid()))
gpus.probe = lambda: [gpus.Gpu("H100", "90")]
gpus.driver_version = lambda: 13000
visit.ROOT = steps.ROOT = home
carried.digest_of_sources = lambda root=None: "equal"
# Nothing here takes long, but the machine may be busy with other work.
steps.LIMITS = dict.fromkeys(steps.LIMITS, 600)
visit.PARTS = dict.fromkeys(visit.PARTS, 3600)
steps.CASE_SECONDS = 120
{patch}
sys.exit(visit.main(sys.argv[1:]))
"""

# Writes its command to `asked`, then acts on the first line of `behaviour` whose words are part of the command.
PROGRAM = """#!/bin/sh
home={home}
case "$*" in *--help*) exit ;; esac
line="${{0##*/}} $*"
case "$*" in *--list-test-names-only*) case "$*" in *few*) echo "GPU: few steps" ;; *) echo "cases of 8x8 in bfloat16" ;; esac; exit ;; esac
echo "$line candidates=$DP_CANDIDATES" >>$home/asked
while read -r act words; do
  case "$line" in *"$words"*) case $act in
    kill) kill -9 $(cat $home/pid); exec sleep 20 ;;
    hang) exec sleep 600 ;;
    fail) echo "it failed"; exit 3 ;;
    other) DIGEST=other ;;
  esac ;; esac
done <$home/behaviour
{action}
"""
ACTIONS = {
    "dp_train": """[ "$1" != env ] || { echo "cuda:0 H100"; echo "cuDNN 9.19"; exit; }
while [ "$1" != --summary ]; do shift; done
echo '{"train_loss": 2.5'${DIGEST:+1}', "weights_sha256": "'${DIGEST:-abc}'"}' >"$2\"""",
    "bench_step": """printf 'conv\\tcudnn:eng1 k\\t2\\nconv\\town:mma 64x64\\t1.5\\nconv\\town:mma resident\\t-\\tdiffers\\n' >"$DP_TUNING_LOG"
printf 'ready\\ndone\\tseconds=1\\tloss=2.5\\n'""",
    "dp_bench": "exec PYTHON $home/bench.py \"$@\"",
    "op_bits": "echo 'bits add 3 aa'", "op_bits_simulated": "echo 'bits add 3 aa'", "compute-sanitizer": "echo '========= ERROR SUMMARY: 0 errors'",
    "ncu": "echo '\"1\",\"conv_kernel\"'",
}
BENCH = """import json, pathlib, sys
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
if words[0] == "step":
    rows = [{"kind": "measured", "key": key, "ms_per_step": ms} for key, ms in zip(value("--variants").split(","), (6.0, 9.0, 9.5))]
    sections = [{"key": "variants", "rows": rows}]
else:
    complete = "mlp" not in words
    sections = [{"key": "sums", "rows": [{"step_ms": 8.0, "floor_ms": 4.0}, {"step_ms": 5.0, "pytorch_ms": 6.0}]},
                {"key": "ops", "rows": [{"step_ms": 5.0}, {"step_ms": 3.0 if complete else 1.0}]}]
pathlib.Path(value("--json")).write_text(json.dumps({"facts": {}, "sections": sections}))
pathlib.Path(value("--markdown")).write_text("a table")
"""


class VisitTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        build = self.home / "built"
        for name in carried.NEEDED:
            self.pretend(build / name)
        for name in ("compute-sanitizer", "ncu", "nvidia-smi", "python"):
            self.pretend(self.home / "bin" / name)
        self.pretend(self.home / "build/probe/question")
        self.pretend(self.home / "build/nccl/libnccl.so.2")
        (self.home / "bench.py").write_text(BENCH)
        (build / "CMakeCache.txt").write_text("DP_NATIVE:BOOL=OFF\nDP_CUDA_ARCHITECTURES:STRING=90\n")
        real = carried.digest_of_sources
        carried.digest_of_sources = lambda root=None: "equal"
        carried.pack(build, self.home / "build/binaries.tar.xz", "c0ffee", preset=0)
        carried.digest_of_sources = real
        self.patch = ""

    def pretend(self, file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PROGRAM.format(home=self.home, action=ACTIONS.get(file.name, "").replace("PYTHON", sys.executable)))
        file.chmod(0o755)

    def call(self, *words, behaviour=""):
        """Runs a visit. Returns its exit status and its record."""
        (self.home / "behaviour").write_text(behaviour + "\n")
        (self.home / "asked").write_text("")
        environment = {**os.environ, "PATH": f"{self.home}/bin:{os.environ['PATH']}", "DP_STARTED_IN": str(self.home)}
        for name in ("OUT", "DP_CANDIDATES"):
            environment.pop(name, None)
        done = subprocess.run([sys.executable, "-c", CALL.format(tool=str(TOOL), home=str(self.home), patch=self.patch), *words, "--commit", "abc",
                               "--out", "out", "--python", str(self.home / "bin/python")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False)
        self.output = done.stdout
        record = self.home / "out/visit.json"
        return done.returncode, json.loads(record.read_text()) if record.exists() else None

    def asked(self):
        return (self.home / "asked").read_text()

    def results(self, record):
        return {step["step"]: step["result"] for step in record["steps"]}

    def names(self):
        with tarfile.open(self.home / "out/results.tar.gz") as archive:
            return set(archive.getnames())

    def test_both_parts_run_every_step_in_order(self):
        for part, figures in (("A", "step-resnet18-bf16"), ("B", "step-resnet18-bf16-compiled")):
            status, record = self.call(part)
            self.assertEqual((status, set(self.results(record).values())), (0, {"passed"}), self.output)
            self.assertEqual(tuple(self.results(record)), steps.PARTS[part])
            self.assertTrue(record["finished"])
            self.assertLessEqual({f"results/{figures}.json", "results/tuning.tsv.gz", "results/tuning.md", "results/logs/env.log"}, self.names())
            self.assertEqual(record["programs"], "commit c0ffee, for sm_90")
            self.assertIn("dp1 6.000 ms", self.output)
        self.assertIn("torch-reduce 9.000 ms, torch-reduce / dp1 = 1.500", self.output)

    def test_only_selected_steps_run(self):
        status, record = self.call("A", "--only", "tests,probe")
        self.assertEqual((status, list(self.results(record))), (0, ["host", "tests", "probe"]), self.output)
        status, _ = self.call("A", "--only", "speed")
        self.assertEqual(status, 2)
        self.assertIn("there is no step speed; the steps are host, probe", self.output)

    def test_a_step_that_fails_or_hangs_does_not_stop_the_next(self):
        self.patch = "steps.LIMITS['step'] = visit.LEAST_SECONDS + 0.5"
        status, record = self.call("A", "--only", "step,ops,mnist", behaviour="hang --variants dp1,torch-cl\nfail mnist_convnet")
        self.assertEqual((status, self.results(record)), (1, {"host": "passed", "step": "timed out", "ops": "passed", "mnist": "failed"}), self.output)
        self.assertIn("exit status 3: it failed", record["steps"][3]["detail"])

    def test_a_failed_case_removes_the_newest_families(self):
        for act in ("fail", "hang"):
            self.patch = "steps.CASE_SECONDS = 1"
            status, record = self.call("A", "--only", "kernels,tune", behaviour=f"{act} test_real_libraries cases of")
            self.assertEqual((status, self.results(record)), (1, {"host": "passed", "kernels": "failed", "tune": "passed"}), self.output)
            tune = next(line for line in self.asked().splitlines() if "--variant dp " in line)
            self.assertIn(f"candidates={steps.NEW_FAMILIES}", tune)
        self.patch = ""
        self.call("A", "--only", "kernels,tune")
        self.assertTrue(next(line for line in self.asked().splitlines() if "--variant dp " in line).endswith("candidates="))

    def test_the_limit_of_the_part_leaves_later_steps_out(self):
        self.patch = """class Time:
    passed = 0
    monotonic = staticmethod(lambda: Time.passed)
visit.time = Time
finish = visit.Visit.finish
def late(self, *rest):
    if self.record["step"] == "step":
        Time.passed = 999
    return finish(self, *rest)
visit.Visit.finish = late"""
        status, record = self.call("A", "--only", "step,ops", "--limit", "1000", behaviour="hang --variants dp1")
        self.assertEqual((status, self.results(record)), (1, {"host": "passed", "step": "timed out", "ops": "not run"}), self.output)

    def test_an_ops_table_that_lacks_rows_fails(self):
        status, record = self.call("A", "--only", "ops", "--small")
        self.assertEqual((status, self.results(record)["ops"]), (1, "failed"), self.output)
        self.assertIn("the rows add up to 6.000 ms of 8.000", record["steps"][1]["detail"])

    def test_ranks_on_one_gpu_must_agree(self):
        for command, wrong in (("--reduce allreduce", "weights differ: p2p abc, nccl abc, allreduce other"), ("--engine ddp", "losses differ: p2p 2.5, ddp 2.51")):
            status, record = self.call("A", "--only", "nccl", behaviour=f"other {command}")
            self.assertEqual((status, self.results(record)["nccl"]), (1, "failed"), self.output)
            self.assertIn(wrong, self.output)
        (self.home / "build/nccl/libnccl.so.2").unlink()
        self.assertEqual(self.results(self.call("A", "--only", "nccl")[1])["nccl"], "skipped")

    def test_a_kill_at_any_step_keeps_the_results_so_far(self):
        words = {"host": "dp_train env", "probe": "question", "kernels": "cases of", "tune": "--variant dp ", "step": "step-resnet18-bf16.json", "ops": "ops --gpu 0 --model resnet",
                 "counters": "ncu", "profile": "pytorch_profile", "mnist": "step-mnist", "ops_mnist": "ops --gpu 0 --model mnist", "replicas": "dp-virtual", "nccl": "--comm nccl", "memcheck": "memcheck"}
        self.assertEqual(tuple(words), steps.PARTS["A"])
        for number, (step, command) in enumerate(words.items()):
            status, record = self.call("A", behaviour=f"kill {command}")
            results = list(self.results(record).values())
            self.assertEqual((status, results), (-9, ["passed"] * number + ["interrupted"] + ["not run"] * (len(words) - number - 1)), step + self.output)
            self.assertFalse(record["finished"])
            self.assertIn("**Not finished.**", (self.home / "out/visit.md").read_text())
            self.assertEqual("results/step-resnet18-bf16.json" in self.names(), number > list(words).index("step"))

    def test_programs_that_do_not_fit_are_refused(self):
        self.patch = "gpus.driver_version = lambda: 12000\ncarried.toolkit_of = None"
        (self.home / "build/binaries.tar.xz").write_bytes(b"torn")
        status, _ = self.call("A")
        self.assertEqual(status, 1)
        self.assertIn("./dev bundle makes", self.output)
        self.patch = "gpus.probe = lambda: 'no NVIDIA driver here'"
        self.assertEqual(self.call("A")[0], 4)


if __name__ == "__main__":
    unittest.main()
