"""Tests whole calls of gpu_all.py on a fake host: the order of the parts, limits, and --continue."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import carried
import gpus
from pretended_host import Host

# Parts in order, each with words of its first command that no command of an earlier passed part has.
PARTS = [("prebuilt programs", ""), ("dp_train env", "dp_train env"), ("resnet18: bfloat16, tuned, 50 steps", "--amp --max-steps 50"),
         ("steps, bf16, compared with eager PyTorch", "--amp-dtype bfloat16"), ("steps, fp16, compared with eager PyTorch", "--amp-dtype float16"),
         ("libraries and tensor cores", "test_real_libraries"), ("GPU tests", "test_gpu"), ("ops and golden figures", "test_ops"),
         ("mnist_convnet: 1, 2, 4 replicas on one GPU", "--gpus 0 --quiet --summary"), ("resnet18: 1, 2, 4 replicas on one GPU", "--bn sync"),
         ("digits, two epochs", "--epochs 2"), ("digits, two epochs, bfloat16", "--amp-dtype bfloat16"), ("digits, two epochs, float16", "--amp-dtype float16"),
         ("resnet18: steps as graphs and one by one", "--no-autotune"), ("compute-sanitizer memcheck", "--tool memcheck"),
         ("compute-sanitizer racecheck", "--tool racecheck"), ("compute-sanitizer initcheck", "--tool initcheck"),
         ("compute-sanitizer synccheck", "--tool synccheck"), ("simulated and real bits", "op_bits"),
         ("steps, bf16, compared with compiled PyTorch", "torch-compiled")]
NAMES = [name for name, _ in PARTS]
ONE_AFTER_ANOTHER = "parts.Parts.side_by_side = lambda self, *runs: [run() for run in runs]"


class OnHost(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.host = Host(self.folder.name)
        self.host.pack()

    def tearDown(self):
        self.folder.cleanup()

    def check_files(self, out):
        """The returned files: few, none large, with plain names."""
        files = list((self.host.home / out).iterdir())
        self.assertLessEqual(len(files), 8)
        for file in files:
            self.assertRegex(file.name, r"^[A-Za-z0-9._-]+$")
            self.assertTrue(file.is_file() and file.stat().st_size < 16 << 20, file)


class Calls(OnHost):
    def test_a_call_runs_everything_in_order_and_a_second_repeats_nothing(self):
        status, output = self.host.call("--out", "a")
        self.assertEqual(status, 0, output)
        record = self.host.record("a")
        self.assertEqual([part["name"] for part in record["parts"]], NAMES)
        self.assertEqual((record["finished"], record["passed"], record["programs"]), (True, True, "prebuilt, of commit c0ffee, for sm_90"))
        # Its own plugin, not one of a build folder.
        self.assertIn("/carried/binaries/apps/dp_train\n", record["environment"])
        began = re.findall(r"^== ([^:\n]+(?:: [^:\n]+)?)$", output, re.MULTILINE)
        order = [name for name in began if name in NAMES]
        self.assertEqual(order[:7], NAMES[:7])
        self.assertEqual(order[-1], NAMES[-1])
        at = order.index
        self.assertLess(max(at(f"compute-sanitizer {tool}") for tool in ("memcheck", "racecheck")),
                        min(at(f"compute-sanitizer {tool}") for tool in ("initcheck", "synccheck")))
        details = {part["name"]: part["detail"] for part in record["parts"]}
        self.assertEqual(details["steps, fp16, compared with eager PyTorch"], "dp 6.000 ms, 85,333 images/s; torch-cl 9.000 ms, 1.50 times as long")
        self.assertIn("torch-compiled 6.600 ms, 1.10 times", details["steps, bf16, compared with compiled PyTorch"])
        page = (self.host.home / "a/measured.md").read_text()
        self.assertIn("| the same in bf16, compiled PyTorch / dp | 1.1 | 1.3 | 1.5 | 1.10", page)
        self.assertIn("| the same in bf16, eager PyTorch / dp | 1.4 | 1.7 | 2.0 | 1.50", page)
        self.check_files("a")
        self.host.behave("")
        status, output = self.host.call("--out", "a", "--continue")
        self.assertEqual((status, self.host.asked()), (0, ""), output)
        self.assertEqual(self.host.record("a")["parts"][1:], record["parts"][1:])

    def test_parts_that_do_not_fit_are_left_for_the_next_call(self):
        status, output = self.host.call("--out", "a", "--limit", "58")
        self.assertEqual(status, 1, output)
        record = self.host.record("a")
        left = [part["name"] for part in record["parts"] if part["result"] != "passed"]
        self.assertEqual(left, [name for name in NAMES if "steps" in name and "one by one" not in name or "sanitizer" in name])
        for part in record["parts"]:
            if part["name"] in left:
                self.assertRegex(part["detail"], r"^\d+ s were left, (60|300) are needed: --continue runs it$")
        self.assertIn(f"continue with --continue {self.host.home}/a", output)
        self.host.behave("")
        self.assertEqual(self.host.call("--out", "a", "--continue")[0], 0)
        self.assertNotIn("test_gpu a case", self.host.asked())

    def test_compiled_pytorch_needs_enough_time_or_a_separate_call(self):
        self.assertEqual(self.host.call("--out", "a", "--limit", "250")[0], 1)
        results = self.host.results("a")
        self.assertEqual([name for name in NAMES if results[name] != "passed"], [NAMES[-1]])
        self.assertEqual(self.host.call("--out", "a", "--continue", "--limit", "250")[0], 0)

    def test_a_host_without_compute_sanitizer_skips_its_parts_once(self):
        (self.host.home / "bin/compute-sanitizer").unlink()
        self.host.patch = "import sanitizer; sanitizer.sanitizer_of = lambda parts: None"
        for words in ((), ("--continue",)):
            self.host.behave("")
            status, output = self.host.call("--out", "a", *words)
            record = self.host.record("a")
            self.assertEqual((status, record["finished"], record["passed"]), (0, True, False), output)
            skipped = [part for part in record["parts"] if part["result"] == "skipped"]
            self.assertEqual([part["name"] for part in skipped], [name for name in NAMES if "sanitizer" in name])
            self.assertEqual({part["result"] for part in record["parts"] if part not in skipped}, {"passed"})
            self.assertEqual({part["detail"] for part in skipped}, {"no compute-sanitizer in PATH or next to nvcc"})
            self.assertIn("Nothing failed, but not everything could be run", output)
            self.assertIn("**Nothing failed, but not everything could be run**", (self.host.home / "a/report.md").read_text())
        self.assertEqual(self.host.asked(), "")

    def test_results_of_an_earlier_call_must_be_of_this_commit(self):
        self.assertEqual(self.host.call("--out", "a", "--limit", "58")[0], 1)
        status, output = self.host.call("--commit", "other", "--out", "b", "--continue", "a")
        self.assertNotEqual(status, 0)
        self.assertIn("a has another commit: abc, not other", output)
        status, output = self.host.call("--out", "b", "--continue", "nothing")
        self.assertIn("nothing has no report to continue from", output)

    def test_programs_that_do_not_fit_are_rebuilt_with_the_reason_reported(self):
        (self.host.build / "CMakeCache.txt").write_text("DP_NATIVE:BOOL=OFF\nDP_CUDA_ARCHITECTURES:STRING=80\n")
        self.host.pack()
        (self.host.home / "bin/cmake").write_text("#!/bin/sh\nexit 3\n")
        (self.host.home / "bin/cmake").chmod(0o755)
        status, output = self.host.call("--out", "a")
        self.assertEqual(status, 1, output)
        parts = {part["name"]: part for part in self.host.record("a")["parts"]}
        self.assertEqual(parts["prebuilt programs"]["detail"], "not used: they are for sm_80, H100 is sm_90")
        self.assertEqual((parts["configuring"]["result"], parts["GPU tests"]["result"]), ("failed", "not run"))


# The parts of gpu-check; the last three run beside those from "ops and golden figures" on.
CHECK_NAMES = ["configuring", "build for the GPU parts", *(name for name in NAMES[1:-2] if not name.startswith("steps, ")),
               "build of the other tests", "simulated and real bits", "all other tests"]
CTEST = """
while [ "$1" != --output-junit ]; do shift; done
echo '<testsuite><testcase name="a" status="run"/></testsuite>' >"$2"
"""


class Check(unittest.TestCase):
    """gpu-check, with a fake cmake and ctest."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.host = Host(self.folder.name, "build/gpu")
        self.host.pretend(self.host.home / "bin/cmake", "")
        self.host.pretend(self.host.home / "bin/ctest", CTEST)
        self.host.patch = ONE_AFTER_ANOTHER

    def tearDown(self):
        self.folder.cleanup()

    def test_gpu_check_builds_what_the_gpu_needs_then_runs_it_then_the_rest(self):
        status, output = self.host.call("--check", "--out", "a")
        self.assertEqual(status, 0, output)
        record = self.host.record("a")
        self.assertEqual((record["title"], record["finished"], record["passed"], record["programs"]), ("GPU check", True, True, "built here"))
        self.assertEqual([(part["name"], part["result"]) for part in record["parts"]], [(name, "passed") for name in CHECK_NAMES])
        asked = self.host.asked().splitlines()
        first = {words: next(i for i, line in enumerate(asked) if line.startswith(words))
                 for words in ("cmake --preset", "cmake --build", "dp_train env", "test_real_libraries", "op_bits_simulated", "op_bits ", "ctest")}
        self.assertEqual(list(first.values()), sorted(first.values()), asked)
        builds = [line for line in asked if line.startswith("cmake --build")]
        self.assertEqual(["--target dp_train dp_cuda" in line for line in builds], [True, False])
        self.assertLess(first["test_real_libraries"], asked.index(builds[1]))
        self.assertLess(asked.index(builds[1]), first["op_bits_simulated"])
        self.host.behave("")
        status, output = self.host.call("--check", "--out", "a", "--continue")
        self.assertEqual((status, {line.split()[0] for line in self.host.asked().splitlines()}), (0, {"cmake"}), output)

    def test_without_a_configured_build_nothing_runs(self):
        (self.host.home / "bin/cmake").write_text("#!/bin/sh\nexit 3\n")
        self.assertEqual(self.host.call("--check", "--out", "a")[0], 1)
        self.assertEqual(self.host.results("a"), {name: "failed" if name == "configuring" else "not run" for name in CHECK_NAMES})
        self.assertEqual(self.host.asked(), "")


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ctest"), "needs CMake")
class Limits(unittest.TestCase):
    def test_whole_calls_have_a_separate_time_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(limits NONE)\nenable_testing()\nset(DP_TEST_TIMEOUT 60)\n"
                f"add_subdirectory({pathlib.Path(__file__).resolve().parent} gpu)\n")
            subprocess.run(["cmake", "-S", folder, "-B", folder], stdout=subprocess.DEVNULL, check=True)
            shown = json.loads(subprocess.check_output(["ctest", "--test-dir", folder, "--show-only=json-v1"]))
        limits = {test["name"]: {entry["name"]: entry["value"] for entry in test["properties"]}["TIMEOUT"] for test in shown["tests"]}
        self.assertEqual({name.split(":")[0]: limit for name, limit in limits.items()}, {"gpu_check": 60, "cases": 60, "gpu_all": 600, "gpu_all_ends": 600})


class Binaries(unittest.TestCase):
    def test_the_file_of_programs_is_relative_to_the_start_folder_and_must_exist(self):
        with tempfile.TemporaryDirectory() as folder:
            host = Host(folder)
            host.started_in = host.home / "elsewhere"
            host.started_in.mkdir()
            host.patch = "gpu_all.Call.run_all = lambda self: None"
            carried.pack(host.build, host.started_in / "programs.tar.xz", "c0ffee", preset=0)
            status, output = host.call("--out", "a", "--binaries", "programs.tar.xz")
            self.assertEqual((status, host.record("elsewhere/a")["programs"]), (0, "prebuilt, of commit c0ffee, for sm_90"), output)
            status, output = host.call("--binaries", "nothing.tar.xz")
            self.assertEqual(status, 2, output)
            self.assertIn(f"--binaries: there is no file {host.started_in}/nothing.tar.xz", output)


class Carried(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.host = Host(self.folder.name)
        self.manifest = self.host.pack()
        self.file = self.host.home / "binaries.tar.xz"

    def tearDown(self):
        self.folder.cleanup()

    def why(self, gpu="90", driver=13000, **other):
        return carried.unfit({**self.manifest, **other}, [gpus.Gpu("GPU", gpu)], driver)

    def test_programs_fit_the_host_they_were_built_for(self):
        self.assertEqual(self.why(), "")
        self.assertEqual(self.why(architectures=["80"], gpu="86"), "")
        for words, changed in (("other sources", {"sources": "x"}), ("are for riscv", {"machine": "riscv"}), ("need glibc 99.1", {"glibc": "99.1"}),
                               ("lacks avx4096", {"processor": ["avx4096"]}), ("are for sm_90, GPU is sm_80", {"gpu": "80"}), ("GPU is sm_100", {"gpu": "100"}),
                               ("are for sm_86, GPU is sm_80", {"architectures": ["86"], "gpu": "80"}),
                               ("need a driver for CUDA 13, this one is for 12.9", {"cuda": "13.0.88", "driver": 12090})):
            self.assertIn(words, self.why(**changed))

    def test_a_changed_source_invalidates_the_programs(self):
        root = pathlib.Path(self.folder.name, "tree")
        (root / "kernels").mkdir(parents=True)
        (root / "kernels/a.cu").write_text("1")
        first = carried.digest_of_sources(root)
        (root / "kernels/notes.md").write_text("1")
        self.assertEqual(carried.digest_of_sources(root), first)
        (root / "kernels/a.cu").write_text("2")
        self.assertNotEqual(carried.digest_of_sources(root), first)

    def test_a_truncated_or_changed_file_is_not_used(self):
        def unpacked():
            return carried.unpacked(self.file, self.host.home / "there", [gpus.Gpu("GPU", "90")], 13000)

        programs, manifest, why = unpacked()
        self.assertEqual((why, manifest["commit"], (programs / "apps/dp_train/dp_train").is_file()), ("", "c0ffee", True))
        with unittest.mock.patch.object(carried, "sha256", lambda file: "x"):
            self.assertIn("has changed since it was packed", unpacked()[2])
        content = self.file.read_bytes()
        self.file.write_bytes(content[:len(content) // 2])
        self.assertNotEqual(unpacked()[2], "")
        self.assertIsNone(unpacked()[0])

    def test_an_incomplete_or_too_large_file_is_rejected(self):
        with unittest.mock.patch.object(carried, "LARGEST_MIB", 0), self.assertRaisesRegex(ValueError, "more than 0"):
            self.host.pack()
        (self.host.build / carried.NEEDED[1]).unlink()
        with self.assertRaisesRegex(ValueError, "lacks apps/dp_train/libdp_cuda.so"):
            self.host.pack()


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
