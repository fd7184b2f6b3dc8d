"""Tests benchmarks/gpu/gpu.py with a fake dp_bench: its commands, crashes, hangs, kills, too little memory, and merged
records. No GPU, no PyTorch, no build. Argument: the source folder."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "benchmarks/gpu"))
sys.dont_write_bytecode = True

import gpu  # noqa: E402
import gpu_measure  # noqa: E402
import gpu_record  # noqa: E402
import gpu_tables  # noqa: E402

# A fake dp_bench. The file `behaviour` beside it has lines of a word and the action of commands with that word.
PRETENDER = """#!{python}
import json, os, pathlib, sys, time
here, words = pathlib.Path(sys.argv[0]).parent, sys.argv[1:]
with open(here / "asked", "a") as file:
    file.write(" ".join(words) + "\\n")
value = lambda name: words[words.index(name) + 1]
acts = [line.split() for line in (here / "behaviour").read_text().splitlines()]
act = next((act for word, act in acts if word in " ".join(words)), "")
if act == "crash":
    print("round 1 of 7", file=sys.stderr); print("out of luck", file=sys.stderr); sys.exit(4)
if act == "signal":
    os.kill(os.getpid(), 9)
if act == "hang":
    (here / "pid").write_text(str(os.getpid()))
    print("round 3 of 7, ms/step: plan 1.0", file=sys.stderr, flush=True); time.sleep(60)
if act == "torn":
    pathlib.Path(value("--json")).write_text('{{"facts": '); sys.exit()
facts = {{"dp": "0.1.0, commit abc", "libraries": os.environ.get("DP_CUDNN_LIBRARY", "")}}
sections = []
if words[0] == "step":
    keys = value("--variants").split(",")
    lost = keys[2:] if act == "memory" else keys if act == "absent" else []
    note = "torch.OutOfMemoryError: CUDA out of memory. Tried" if act == "memory" else "the reason"
    ms = {{"plan": 0.99, "dp1": 1.0, "torch-cl": 1.5, "torch-compiled": 1.2, "dp-virtual": 1.05}}
    rows = [{{"kind": "measured", "variant": key.upper(), "key": key, "ms_per_step": float(value("-b")) * ms[key]}} if key not in lost else
            {{"kind": "not run", "variant": key.upper(), "key": key, "ms_per_step": None, "note": note}} for key in keys]
    sections.append({{"key": "variants", "title": "t", "columns": {{"variant": "variant", "ms_per_step": "ms"}}, "rows": rows}})
    pairs = [(a, b) for a in keys for b in keys if a not in lost and b not in lost]
    sections.append({{"key": "ratios", "title": "t", "columns": {{}}, "rows": [
        {{"kind": "measured", "ratio_of": a.upper() + " / " + b.upper(), "ratio": ms[a] / ms[b], "low": 0.9, "high": 2.0}} for a, b in pairs]}})
else:
    log = os.environ.get("DP_TUNING_LOG")
    if log and os.environ["XDG_CACHE_HOME"] == os.path.dirname(log):  # a cached choice would skip a trial
        pathlib.Path(log).write_text("a problem\\town:mma 64x64\\t3.5\\n")
    sections.append({{"key": "ops", "title": "t", "columns": {{"op": "op", "ms": "ms"}}, "rows": [{{"kind": "measured", "op": "conv1", "ms": 0.25}}]}})
if act == "late":
    time.sleep(60)
if "--json" in words:
    pathlib.Path(value("--json")).write_text(json.dumps({{"facts": facts, "sections": sections}}))
"""


def runs(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


class Pretended(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)
        self.programs = self.home / "build/apps/dp_bench"
        self.programs.mkdir(parents=True)
        (self.programs / "dp_bench").write_text(PRETENDER.format(python=sys.executable))
        (self.programs / "dp_bench").chmod(0o755)
        self.behave("")
        self.errors = io.StringIO()

    def tearDown(self):
        self.folder.cleanup()

    def behave(self, text):
        (self.programs / "behaviour").write_text(text)
        (self.programs / "asked").write_text("")

    def asked(self):
        return (self.programs / "asked").read_text().splitlines()

    def words(self, out, *more):
        return ["--gpus", "0", "--build", str(self.home / "build"), "--out", str(self.home / out), "--python", "/nonexistent", "--commit", "abc", *more]

    def run_here(self, out, *more, each=20.0):
        options = gpu.arguments(self.words(out, *more))
        options.each = each
        with contextlib.redirect_stderr(self.errors):
            gpu.Run(options).measure_all()
        return self.record(out)

    def record(self, out):
        return json.loads((self.home / f"{out}.json").read_text())

    def page(self, out):
        return (self.home / f"{out}.md").read_text()

    def whys(self, record):
        return [result["why"] for result in record["results"]]


class PlannedCases(unittest.TestCase):
    def cases(self, *words):
        return gpu.cases_of(gpu.arguments(["--gpus", "0", *words]))

    def test_every_network_is_measured_at_all_sizes_in_every_type(self):
        steps = {(about["network"], about["type"], about["batch"]) for section, about, _ in self.cases() if section == "step"}
        self.assertEqual(steps, {(network[0], kind, batch) for network in gpu.NETWORKS for kind in ("bf16", "fp16", "fp32") for batch in (64, 128, 256, 512, 1024)})
        for _, about, command in self.cases("--only", "step"):
            self.assertIn("plan,dp1,torch-cl,torch-compiled", command)
            self.assertEqual(command[command.index("-b") + 2:][:3] == ["--amp", "--amp-dtype", {"bf16": "bfloat16", "fp16": "float16"}.get(about["type"])], about["type"] != "fp32")

    def test_candidates_are_timed_on_the_shapes_of_the_first_measurements(self):
        ways = {(about["type"], about["batch"]) for section, about, _ in self.cases() if section == "ways"}
        self.assertEqual(ways, {(kind, batch) for kind in ("bf16", "fp16", "fp32") for batch in (256, 1024)})

    def test_quick_measures_the_goals_and_compiles_once(self):
        options = gpu.arguments(["--gpus", "0", "--quick"])
        self.assertLess(options.limit, 600)
        self.assertLessEqual(options.each, options.limit)
        cases = gpu.cases_of(options)
        self.assertEqual([(about["model"], about["batch"]) for section, about, _ in cases if section == "step"],
                         [("resnet18", 512), ("resnet18", 256), ("mnist_convnet", 64), ("mnist_convnet", 1024)])
        self.assertEqual({about["type"] for _, about, _ in cases}, {"bf16"})
        self.assertEqual([about["network"] for _, about, command in cases if "torch-compiled" in " ".join(command)], [gpu_tables.CIFAR])
        self.assertEqual([about["batch"] for section, about, _ in cases if section == "virtual"], [1024])

    def test_goals_come_first_and_quick_respects_the_requested_type(self):
        order = [(section, about.get("type")) for section, about, _ in self.cases()]
        self.assertEqual(order[:5], [("step", "bf16")] * 4 + [("virtual", "bf16")])
        self.assertLess(max(i for i, one in enumerate(order) if one[1] == "bf16"), min(i for i, one in enumerate(order) if one[1] == "fp16"))
        self.assertEqual({about["type"] for _, about, _ in self.cases("--quick", "--types", "fp16")}, {"fp16"})

    def test_several_gpus_include_collectives(self):
        self.assertNotIn("comm", [section for section, _, _ in self.cases()])
        self.assertIn("comm", [section for section, _, _ in gpu.cases_of(gpu.arguments(["--gpus", "0-3"]))])


class Results(Pretended):
    def test_crashes_kills_and_truncated_reports_are_rows_and_the_others_run(self):
        self.behave("64 crash\n128 signal\n256 torn\n512 absent\n")
        record = self.run_here("r", "--types", "fp32", "--networks", "MNIST", "--only", "step", "--batches", "64,128,256,512,1024")
        self.assertEqual([whys[:24] for whys in self.whys(record)],
                         ["exit status 4: out of lu", "ended by signal 9", "its report cannot be rea", "the reason", ""])
        self.assertEqual([bool(result["report"]) for result in record["results"]], [False, False, False, True, True])
        page = self.page("r")
        self.assertIn("| step: MNIST convnet, 28x28, batch 64, fp32 | all | exit status 4: out of luck |", page)
        self.assertIn("| step: MNIST convnet, 28x28, batch 512, fp32 | PLAN | the reason |", page)
        self.assertIn("| MNIST convnet, 28x28 | 1024 | fp32 | 1,013.760 | 1,024.000 | 1,000 | 60.000 | 1,536.000 |", page)

    def test_the_page_begins_with_the_goals(self):
        self.run_here("r", "--types", "bf16,fp32", "--networks", "32x32", "--only", "step,virtual", "--batches", "512,1024")
        page = self.page("r")
        for line in ("| ResNet18/CIFAR, batch 512, s/epoch | 0.60 | 0.47 | 0.40 | 50.000, bf16 |",
                     "| the same in bf16, compiled PyTorch / dp | 1.1 | 1.3 | 1.5 | 1.20 (0.90 to 2.00), bf16 |",
                     "| the same in bf16, eager PyTorch / dp | 1.4 | 1.7 | 2.0 | 1.50 (0.90 to 2.00), bf16 |",
                     "| bare plan / dp, at batch 512 of CIFAR | 0.971 | 0.990 | 0.995 | 0.990 (0.900 to 2.000), bf16 |",
                     "| one replica / four on one GPU, batch 1024 in all | 0.870 | 0.935 | 0.971 | 0.952 (0.900 to 2.000), bf16 |",
                     "| ResNet18-224, img/s | 24,000 | 30,000 | 37,000 | - |"):
            self.assertIn(line, page)

    def test_a_hang_is_stopped_and_its_last_progress_reported(self):
        self.behave("64 hang\n")
        record = self.run_here("r", "--types", "bf16", "--networks", "MNIST", "--only", "step", "--batches", "64,128", each=1.0)
        self.assertEqual(self.whys(record), ["not finished after 1 s: round 3 of 7, ms/step: plan 1.0", ""])

    def test_cases_without_time_left_are_reported(self):
        record = self.run_here("r", "--limit", "5", "--networks", "MNIST", "--only", "step")
        self.assertEqual(set(self.whys(record)), {"no time was left"})
        self.assertEqual(self.asked(), [])

    def test_a_variant_that_hangs_costs_half_of_the_time_left(self):
        self.assertEqual(gpu_measure.in_time(["a", "--timeout", "150", "b"], 100), ["a", "--timeout", "50", "b"])
        self.assertEqual(gpu_measure.in_time(["a", "--timeout", "500", "b"], 540), ["a", "--timeout", "450", "b"])
        self.assertEqual(gpu_measure.in_time(["a", "--timeout", "150", "b"], 1000), ["a", "--timeout", "150", "b"])
        self.assertEqual(gpu_measure.in_time(["ops"], 100), ["ops"])

    def test_candidates_timed_before_the_end_are_recorded(self):
        self.behave("ops late\n")
        record = self.run_here("r", "--types", "bf16", "--networks", "MNIST", "--only", "ways", "--batches", "64", each=2.0)
        self.assertEqual(record["results"][0]["report"]["sections"][0]["rows"][0]["own_tensor"], 3.5)
        self.assertIn("Not complete: not finished after 2 s", self.page("r"))

    def test_variants_out_of_memory_are_measured_again_with_dp1_alone(self):
        self.behave("plan,dp1,torch-cl,torch-compiled memory\n")
        record = self.run_here("r", "--types", "bf16", "--networks", "224", "--only", "step", "--batches", "1024")
        self.assertEqual([line.split("--variants ")[1].split()[0] for line in self.asked()],
                         ["plan,dp1,torch-cl,torch-compiled", "dp1,torch-cl", "dp1,torch-compiled"])
        result = record["results"][0]
        self.assertEqual(gpu_tables.ratio(result, "torch-compiled", "dp1"), (1.2, 0.9, 2.0))
        page = self.page("r")
        self.assertIn("| 1,536.000 | 1,228.800 | 1.50 (0.90 to 2.00) | 1.20 (0.90 to 2.00) |", page)
        self.assertIn("| step: ResNet18, 7x7 stem, 224x224, batch 1024, bf16 | torch-compiled |", page)
        self.assertNotIn("OutOfMemory", page)

    def test_a_virtual_run_out_of_memory_is_not_repeated(self):
        report = {"facts": {}, "sections": [{"key": "variants", "columns": {}, "rows": [
            {"kind": "measured", "key": "dp1"}, {"kind": "not run", "key": "dp-virtual", "note": "out of memory on cuda:0"}]}]}
        programs = unittest.mock.Mock()
        programs.report.return_value = (report, "")
        done = gpu_measure.measured(programs, {"section": "virtual"}, ["dp_bench", "--variants", "dp1,dp-virtual"], 9)
        self.assertEqual((programs.report.call_count, done["more"]), (1, {}))

    def test_an_unexpected_report_fails_its_case_and_not_the_record(self):
        with unittest.mock.patch.object(gpu, "measured", side_effect=[KeyError("key"), {"report": None, "why": "next", "more": {}}]):
            record = self.run_here("r", "--types", "bf16", "--networks", "MNIST", "--only", "step", "--batches", "64,128")
        self.assertEqual(self.whys(record), ["KeyError: 'key'", "next"])
        with unittest.mock.patch.object(gpu, "page", side_effect=ValueError("no table")):
            record = self.run_here("s", "--types", "bf16", "--networks", "MNIST", "--only", "step", "--batches", "64")
        self.assertEqual(self.whys(record), [""])
        self.assertIn("no table", self.page("s"))

    def stopped(self, how):
        """The record and the exit status of a run that is stopped during its second case."""
        self.behave("128 hang\n")
        command = [sys.executable, "-B", SOURCE / "benchmarks/gpu/gpu.py", *self.words("r", "--types", "bf16", "--networks", "MNIST", "--only", "step", "--batches", "64,128,256")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pid_file = self.programs / "pid"
        end = time.monotonic() + 60
        while not (pid_file.is_file() and pid_file.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        child = int(pid_file.read_text())
        process.send_signal(how)
        status = process.wait(60)
        while runs(child):
            self.assertLess(time.monotonic(), end, "what was measured goes on")
            time.sleep(0.05)
        return self.record("r"), status

    def test_a_killed_run_leaves_its_record_and_nothing_on_the_gpu(self):
        for how, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 143)):
            record, ended = self.stopped(how)
            self.assertEqual(ended, status)
            self.assertEqual(self.whys(record), ["", "the run ended during this case", "the run ended before this case"])
            self.assertTrue(gpu_tables.has_figures(record["results"][0]["report"]))
            (self.programs / "pid").unlink()

    def test_libraries_of_python_packages_are_passed_to_our_programs(self):
        python = self.home / "python"
        python.write_text('#!/bin/sh\necho noise\necho \'{"facts": {"PyTorch": "2.9"}, "libraries": {"DP_CUDNN_LIBRARY": "/there/libcudnn.so.9"}}\'\n')
        python.chmod(0o755)
        words = ["--types", "bf16", "--networks", "MNIST", "--only", "step", "--batches", "64", "--python", str(python)]
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("DP_CUDNN_LIBRARY", None)
            for found, file in ((False, "/there/libcudnn.so.9"), (True, "")):
                with unittest.mock.patch.object(gpu_record, "loads", lambda name, found=found: found):
                    record = self.run_here("r", *words)
                self.assertEqual((record["facts"]["PyTorch"], record["facts"].get("DP_CUDNN_LIBRARY", "")), ("2.9", file))
                self.assertEqual(record["results"][0]["report"]["facts"]["libraries"], file)


class MergedRecords(Pretended):
    common = ("--types", "bf16", "--networks", "MNIST", "--only", "step", "--batches", "64,128")

    def test_cases_with_a_result_are_not_measured_again(self):
        self.behave("128 crash\n")
        first = self.run_here("first", *self.common)
        self.behave("")
        both = self.run_here("both", *self.common, "--with", str(self.home / "first.json"))
        self.assertEqual([line.split(" -b ")[1].split()[0] for line in self.asked()], ["128"])
        self.assertEqual(self.whys(both), ["", ""])
        self.assertEqual(both["results"][0], first["results"][0])
        self.assertEqual(len(both["runs"]), 2)

    def test_a_limit_of_zero_only_merges_records(self):
        self.behave("128 crash\n")
        self.run_here("a", *self.common)
        self.run_here("b", *self.common[:-1], "256", "--variants", "plan,dp1")
        self.run_here("c", *self.common[:-1], "256", "--variants", "dp1,torch-cl")
        self.behave("")
        files = [str(self.home / f"{name}.json") for name in "abc"]
        record = self.run_here("all", *self.common, "--with", *files, "--limit", "0")
        self.assertEqual(self.asked(), [])
        self.assertEqual([(r["about"]["batch"], r["why"][:6]) for r in record["results"]], [(64, ""), (128, "exit s"), (256, "")])
        self.assertEqual(set(gpu_tables.variants_of(record["results"][2])), {"plan", "dp1", "torch-cl"})

    def test_records_of_another_commit_or_host_are_rejected(self):
        self.run_here("a", *self.common)
        for facts in ({"commit": "abd"}, {"driver": "1.2"}, {"GPU 0": "another"}):
            other = self.record("a")
            other["facts"].update(facts)
            (self.home / "b.json").write_text(json.dumps(other))
            for files in (["a", "b"], ["b"]):
                with self.assertRaises(SystemExit) as refused:
                    self.run_here("all", *self.common, "--with", *(str(self.home / f"{name}.json") for name in files))
                self.assertIn(next(iter(facts)), str(refused.exception))
        (self.home / "b.json").write_text("{")
        with self.assertRaises(SystemExit):
            self.run_here("all", *self.common, "--with", str(self.home / "b.json"))


if __name__ == "__main__":
    unittest.main()
