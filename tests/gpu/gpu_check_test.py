"""Tests single parts of gpu-all and gpu-check with fake programs. gpu_all_test.py and gpu_all_ends_test.py test whole
calls."""
import fnmatch
import json
import os
import pathlib
import re
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock

import cases
import checks
import ctests
import gpus
import libraries
import report
import sanitizer
from parts import Parts

JUNIT = """<testsuite><testcase name="a" status="run"/><testcase name="{name}" status="{b}">{inner}</testcase></testsuite>"""
# As CTest 3.25 prints.
STOPPED = """Test project /x
    Start 1: a: fine, a name [x]
    Start 2: b: fails
1/8 Test #2: b: fails ......................***Failed    0.00 sec

what it printed
    Start 3: c: skips
2/8 Test #1: a: fine, a name [x] ...........   Passed    0.00 sec
    Start 4: d: times out
3/8 Test #3: c: skips ......................***Skipped   0.00 sec
    Start 5: e: crashes
4/8 Test #5: e: crashes ....................***Exception: SegFault  0.00 sec

    Start 6: f: aborts
5/8 Test #6: f: aborts .....................Subprocess aborted***Exception:   0.00 sec

    Start 7: g: a name that fills the line
6/8 Test #7: g: a name that fills the line ...***Failed    0.01 sec

    Start 8: h: hangs
7/8 Test #4: d: times out ..................***Timeout   1.00 sec
"""


class Pretended(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.build = pathlib.Path(self.folder.name)
        (self.build / "logs").mkdir()
        path = f"{self.build}/bin:/usr/bin:/bin"
        self.parts = Parts(self.build / "logs", {"PATH": path, "DP_TUNING_SECONDS": "90"}, time.monotonic() + 600)
        self.parts.sizes = checks.SIZES
        os.environ["PATH"] = path  # where Popen looks

    def tearDown(self):
        self.folder.cleanup()

    def pretend(self, name, script):
        file = self.build / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)

    def only(self):
        self.assertEqual(len(self.parts.done), 1)
        return self.parts.done[0]


class GpuCheck(Pretended):
    def test_without_a_driver_the_reason_is_named(self):
        self.assertIn("libdp_no_such_driver.so.1 not found", gpus.probe("libdp_no_such_driver.so.1"))

    def test_a_part_that_fails_or_hangs_is_recorded_and_the_next_one_runs(self):
        def throws(part):
            raise ValueError("no luck")

        self.parts.run("throws", throws)
        self.parts.run("hangs", lambda part: self.parts.command(part, ["sleep", "20"], 1))
        self.parts.run("runs", lambda part: self.parts.verdict(part, True, ""))
        self.assertEqual([part.result for part in self.parts.done], ["failed", "timed out", "passed"])
        self.assertIn("no luck", self.parts.done[0].detail)
        self.parts.deadline = time.monotonic()
        self.parts.run("too late", lambda part: self.parts.command(part, ["true"], 10))
        self.assertEqual((self.parts.done[-1].result, self.parts.done[-1].detail), ("not run", "0 s were left, 5 are needed: --continue runs it"))

    def bits(self, simulated, real):
        self.pretend("tests/cuda/op_bits_simulated", f"printf '{simulated}'")
        self.pretend("tests/cuda/op_bits", f"printf '{real}'")
        checks.op_bits(self.parts, self.build)
        return self.only()

    def test_equal_bits_pass(self):
        self.assertEqual(self.bits(r"bits add 3 aa\nx\nbits relu 3 bb\n", r"bits relu 3 bb\nbits add 3 aa\n").result, "passed")

    def test_different_bits_and_missing_lines_are_named(self):
        part = self.bits(r"bits add 3 aa\nbits relu 3 bb\n", r"bits add 3 ab\nbits mul 1 cc\n")
        self.assertEqual((part.result, part.failed_tests), ("failed", ["add 3", "mul 1", "relu 3"]))

    def test_missing_bits_do_not_pass(self):
        self.assertEqual(self.bits("", "").result, "failed")

    def replicas(self, weights):
        words = 'while [ "$1" != --summary ]; do shift; done; file=$2\nwhile [ "$1" != --replicas-per-device ]; do shift; done\n'
        self.pretend("apps/dp_train/dp_train", words + f'echo "{{\\"weights_sha256\\": \\"{weights}\\"}}" >"$file"')
        checks.replicas(self.parts, self.build)
        return [part.result for part in self.parts.done]

    def test_weights_that_do_not_depend_on_the_replicas_pass(self):
        self.assertEqual(self.replicas("abc"), ["passed"] * 2)

    def test_weights_that_depend_on_the_replicas_fail(self):
        self.assertEqual(self.replicas("abc$2"), ["failed"] * 2)

    def graphs(self, weights):
        words = 'while [ "$1" != --summary ]; do shift; done; file=$2\ncase "$*" in *"--graphs never"*) how=eager;; *) how=graphs;; esac\n'
        self.pretend("apps/dp_train/dp_train", words + f'echo "{{\\"weights_sha256\\": \\"{weights}\\"}}" >"$file"')
        checks.graphs(self.parts, self.build)
        return self.only().result

    def test_graphs_with_equal_weights_pass(self):
        self.assertEqual(self.graphs("abc"), "passed")

    def test_graphs_with_different_weights_fail(self):
        self.assertEqual(self.graphs("abc$how"), "failed")

    def test_mixed_precision_is_requested_and_named(self):
        self.pretend("apps/dp_train/dp_train", 'echo "$*" | grep -o "amp-dtype [a-z0-9]*"; exit 4')
        checks.digits(self.parts, self.build, "float16")
        part = self.only()
        self.assertEqual((part.name, part.detail), ("digits, two epochs, float16", "exit status 4: amp-dtype float16"))

    def test_training_that_fails_is_quoted(self):
        self.pretend("apps/dp_train/dp_train", "echo 'dp_train: out of memory'; exit 4")
        checks.digits(self.parts, self.build)
        self.assertEqual(self.only().detail, "exit status 4: dp_train: out of memory")

    def run_ctest(self, what, b, inner="", name="b"):
        xml = JUNIT.format(b=b, inner=inner, name=name)
        self.pretend("bin/ctest", 'while [ "$1" != --output-junit ]; do shift; done\n' + f"cat >\"$2\" <<'XML'\n{xml}\nXML\n")
        what(self.parts, self.build)
        return self.only()

    def test_a_failed_test_is_named(self):
        part = self.run_ctest(ctests.all_tests, "fail", '<failure message="x"/>')
        self.assertEqual((part.result, part.failed_tests, part.detail), ("failed", ["b"], "1 passed, 1 failed, 0 skipped"))

    def test_all_other_tests_may_be_skipped(self):
        part = self.run_ctest(ctests.all_tests, "notrun", '<skipped message="SKIP_RETURN_CODE=4"/>')
        self.assertEqual((part.result, part.skipped_tests), ("passed", ["b"]))

    def test_a_ctest_run_without_results_fails(self):
        self.pretend("bin/ctest", "echo 'Errors while discovering tests'; exit 8")
        ctests.all_tests(self.parts, self.build)
        self.assertEqual((self.only().result, self.only().detail), ("failed", "exit status 8, and no results"))

    def test_a_stopped_ctest_run_reports_the_finished_tests(self):
        self.pretend("bin/ctest", f"cat <<'LOG'\n{STOPPED}LOG\nexec sleep 20")
        ctests.all_tests(self.parts, self.build, limit=1)
        part = self.only()
        self.assertEqual((part.result, part.detail), ("timed out", "stopped after 1 s: 1 passed, 5 failed, 1 skipped, 1 had not ended"))
        self.assertEqual(part.failed_tests, ["b: fails", "e: crashes", "f: aborts", "g: a name that fills the line", "d: times out"])
        self.assertEqual((part.skipped_tests, part.unfinished_tests), (["c: skips"], ["h: hangs"]))

    def test_a_test_has_the_time_limit_of_the_build(self):
        lists = pathlib.Path(__file__).resolve().parents[1] / "CMakeLists.txt"
        self.assertIn("TIMEOUT ${DP_TEST_TIMEOUT}", lists.read_text())
        self.pretend("root/dev", "")
        self.pretend("bin/cmake", 'echo "$*"')
        self.assertTrue(checks.configure(self.parts, self.build / "root", self.build, [gpus.Gpu("H200", "90")]))
        self.assertIn(f"-DDP_TEST_TIMEOUT={cases.CASE_SECONDS} ", self.only().output_tail)

    def built(self, script):
        (self.build / "root").mkdir(exist_ok=True)
        self.pretend("bin/cmake", script)
        return checks.build(self.parts, self.build / "root", self.build)

    def test_gpu_targets_are_built_first_and_a_failure_does_not_stop_the_rest(self):
        self.assertTrue(self.built('echo "$*"'))
        words = self.only().output_tail.split()
        self.assertIn("--target", words)
        self.assertEqual(words[-2:], ["-k", "0"])
        self.assertLessEqual(set(checks.ESSENTIAL), set(words))

    def test_a_failed_build_continues_if_the_needed_targets_exist(self):
        fails = 'case "$*" in *"--target dp_train dp_cuda test_gpu") ;; *) echo "FAILED: x.o"; echo "x.cu(3): error: no luck"; exit 1 ;; esac'
        self.assertTrue(self.built(fails))
        self.assertEqual([part.result for part in self.parts.done], ["failed", "passed"])
        self.assertEqual(self.parts.done[0].detail, "exit status 1, 1 commands failed")
        self.assertEqual(self.parts.done[0].telling, ["FAILED: x.o", "x.cu(3): error: no luck"])

    def test_a_failed_build_does_not_continue_with_old_targets(self):
        self.pretend("apps/dp_train/dp_train", "")
        self.assertFalse(self.built("exit 1"))
        self.assertEqual([part.result for part in self.parts.done], ["failed", "failed"])

    def packages(self, *files):
        site = self.build / "site"
        for file in files:
            (site / "nvidia" / file).parent.mkdir(parents=True, exist_ok=True)
            (site / "nvidia" / file).touch()
        return [str(self.build / "none"), str(site)]

    def test_libraries_of_python_packages_come_before_others(self):
        path = self.packages("cudnn/lib/libcudnn.so.9", "cu13/lib/libcublasLt.so.13", "empty/lib/__init__.py")
        nvidia = f"{(self.build / 'site' / 'nvidia').resolve()}"
        found = f"{nvidia}/cu13/lib:{nvidia}/cudnn/lib"
        self.assertEqual(libraries.with_libraries({}, path), {"LD_LIBRARY_PATH": found})
        self.assertEqual(libraries.with_libraries({"LD_LIBRARY_PATH": "/x"}, path), {"LD_LIBRARY_PATH": f"{found}:/x"})
        self.assertEqual(libraries.with_libraries({"A": "b"}, path[:1]), {"A": "b"})

    def test_an_installed_library_that_is_not_used_is_reported(self):
        path = self.packages("cudnn/lib/libcudnn.so.9", "cu13/lib/libcublasLt.so.13")
        used, none = "cuDNN       9.19.0, libcudnn.so.9\n", "cuDNN       none: libcudnn.so.9 was not found\n"
        blas = "cuBLASLt    13.1.0, libcublasLt.so.13\n"
        self.assertEqual(libraries.unused(used + blas, {}, path), [])
        wrong = libraries.unused(none + blas, {}, path)
        self.assertEqual(len(wrong), 1)
        self.assertIn("cudnn/lib/libcudnn.so.9 is there", wrong[0])
        self.assertEqual(len(libraries.unused("no word of them\n", {}, path)), 2)
        self.assertEqual(libraries.unused(none + blas, {"DP_CUDNN_LIBRARY": "none"}, path), [])
        self.assertEqual(libraries.unused(none, {}, path[:1]), [])

    def test_dp_train_env_must_list_every_installed_library(self):
        self.pretend("apps/dp_train/dp_train", "echo 'cuDNN       none: not found'; echo 'cuda:0      H100'")
        path = self.packages("cudnn/lib/libcudnn.so.9")
        with unittest.mock.patch.object(sys, "path", path), unittest.mock.patch("builtins.print"):
            facts = {}
            checks.environment(self.parts, self.build, facts)
        self.assertIn("cuDNN", facts["environment"])
        part = self.only()
        self.assertEqual(part.result, "failed")
        self.assertIn("cuDNN is not used", part.detail)

    def test_dp_train_env_fails_without_a_usable_gpu(self):
        for printed, result in (("CUDA        not used: no device", "failed"), ("NVIDIA H100, not cuda:0", "failed"), ("cuda:0      H100", "passed")):
            self.pretend("apps/dp_train/dp_train", f"echo '{printed}'")
            self.parts.done.clear()
            with unittest.mock.patch("builtins.print"), unittest.mock.patch.object(libraries, "unused", lambda *_: []):
                checks.environment(self.parts, self.build, {})
            part = self.only()
            self.assertEqual(part.result, result, printed)
            self.assertIn("" if result == "passed" else printed if printed.startswith("CUDA") else "no cuda:0", part.detail)

    def headline(self, log, loss="2.3"):
        words = 'while [ "$1" != --summary ]; do shift; done\n'
        self.pretend("apps/dp_train/dp_train", words + f'printf "{log}" >"$DP_TUNING_LOG"\n'
                     f'echo "{{\\"train_loss\\": {loss}, \\"images_per_second\\": $DP_TUNING_SECONDS.5}}" >"$2"')
        checks.headline(self.parts, self.build)
        return self.only()

    def test_tuned_training_passes_and_reports_rejected_candidates(self):
        part = self.headline(r"conv\town:64x64\t3\nconv\tcudnn:eng1\t2.5\ttimed without a graph\nconv\town:mma 64x64\t-\tloses NaN\n"
                             r"fc\town:64x64\t-\tnot tried: the 90 s of DP_TUNING_SECONDS are over\n")
        self.assertEqual((part.result, part.detail), ("passed", "loss 2.3, 90 images/s, 3 candidates tried, 1 rejected"))
        self.assertEqual(part.notes, ["1 candidates: loses NaN", "1 candidates: not tried: the 90 s of DP_TUNING_SECONDS are over",
                                      "conv: own:mma 64x64 loses NaN"])

    def test_tuned_training_without_a_fast_candidate_or_a_loss_fails(self):
        for log, loss in ((r"conv\town:64x64\t3\nconv\town:mma 64x64\t-\tfailed\n", "2.3"), ("", "2.3"), (r"conv\tcudnn:eng1\t2\n", "null")):
            self.parts.done.clear()
            self.assertEqual(self.headline(log, loss).result, "failed")

    def sanitized(self, script):
        self.pretend("bin/compute-sanitizer", script)
        for tool in sum(sanitizer.TOOLS, ()):
            sanitizer.sanitize(self.parts, self.build, tool)
        self.assertEqual(len(self.parts.done), 4)
        return {part.result for part in self.parts.done}

    def test_the_cases_for_the_sanitizers_exist(self):
        tests = pathlib.Path(__file__).resolve().parents[1]
        for names, files in ((sanitizer.OPS, "kernels/*_test.cpp"), (sanitizer.TRAINING, "cuda/gpu_test.cpp"),
                             (sanitizer.TENSOR_CORES, "cuda/vendor/gpu_libraries_test.cpp")):
            sources = "".join(file.read_text() for file in sorted(tests.glob(files)))
            for name in names:
                self.assertRegex(sources, r'(TEST_CASE|DP_IN_16_BITS)\("' + re.escape(name.rstrip("*")))

    def test_the_sanitizers_reach_all_fused_layers_and_the_update_of_many_running_values(self):
        kernels = pathlib.Path(__file__).resolve().parents[1] / "kernels"
        names = re.findall(r'^TEST_CASE\("([^"]+)"', (kernels / "fused_layers_test.cpp").read_text(), re.MULTILINE)
        names += re.findall(r'^TEST_CASE\("(one op updates the running values [^"]+)"', (kernels / "batch_norm_test.cpp").read_text(), re.MULTILINE)
        self.assertGreater(len(names), 6)
        self.assertEqual([name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in sanitizer.OPS)], [])

    def test_a_sanitizer_without_errors_passes(self):
        self.assertEqual(self.sanitized("echo '========= ERROR SUMMARY: 0 errors'"), {"passed"})
        self.parts.done.clear()
        self.assertEqual(self.sanitized("echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'"), {"passed"})

    def test_a_sanitizer_with_errors_or_without_tests_fails(self):
        self.assertEqual(self.sanitized("echo '========= Invalid __global__ read'; echo '========= ERROR SUMMARY: 2 errors'; exit 9"),
                         {"failed"})
        self.assertIn("ERROR SUMMARY: 2 errors; first Invalid __global__ read", self.parts.done[0].detail)
        self.parts.done.clear()
        self.assertEqual(self.sanitized("echo 'No tests ran'; echo '========= ERROR SUMMARY: 0 errors'"), {"failed"})
        self.parts.done.clear()
        self.assertEqual(self.sanitized("echo killed"), {"failed"})

    def nccl(self, number=704, library="libnccl.so.2", errors=1, tests="All tests passed (3 assertions in 1 test case)"):
        """Two formats of a stack frame: older and newer versions of the tool."""
        for frame in (f"Host Frame:ncclCommInitAll [0x3b392]\n=========                in /lib/{library}", f"    Host Frame: ncclCommInitAll [0x3b392] in {library}"):
            yield (f"========= COMPUTE-SANITIZER\n========= Program hit cudaError (error {number}) due to \"a reason\" on CUDA API call to cudaFunction.\n"
                   f"=========     Saved host backtrace up to driver entry point at error\n=========     Host Frame: [0x2d1e3a] in libcuda.so.1\n"
                   f"=========     {frame}\n=========     Host Frame: main [0x1] in test_gpu\n========= \n{tests}\n========= ERROR SUMMARY: {errors} error\n")

    def test_errors_that_nccl_handles_itself_are_not_failures(self):
        for number in (704, 209):
            for output in self.nccl(number):
                self.assertEqual(sanitizer.reason(sanitizer.FOUND, output), "")

    def test_errors_besides_those_of_nccl_fail(self):
        for changed, said in (({"number": 700}, "; first Program hit cudaError (error 700)"), ({"library": "libdp_cuda.so"}, "; first Program hit cudaError (error 704)"),
                              ({"errors": 2}, "ERROR SUMMARY: 2 error"), ({"tests": "test cases: 3 | 2 passed | 1 failed"}, "tests failed: test cases: 3"),
                              ({"tests": "killed"}, "tests failed: exit status 9")):
            for output in self.nccl(**changed):
                self.assertIn(said, sanitizer.reason(sanitizer.FOUND, output))

    def test_failing_tests_under_a_sanitizer_without_findings_are_the_reason(self):
        self.assertEqual(self.sanitized("echo 'test cases: 3 | 2 passed | 1 failed'; echo '========= ERROR SUMMARY: 0 errors'; exit 1"),
                         {"failed"})
        self.assertIn("tests failed: test cases: 3 | 2 passed | 1 failed", self.parts.done[0].detail)

    def test_kernels_are_loaded_when_needed_under_a_sanitizer(self):
        self.sanitized('echo "$CUDA_MODULE_LOADING"; echo "========= ERROR SUMMARY: 0 errors"')
        for part in self.parts.done:
            self.assertEqual(["LAZY" in command for command in part.commands], [True] * 3)

    def test_a_program_that_hangs_under_a_sanitizer_does_not_hide_the_next(self):
        self.pretend("bin/compute-sanitizer", 'case "$*" in *test_real_libraries*) exec sleep 20 ;; esac; echo "ERROR SUMMARY: 0 errors"')
        command = self.parts.command
        with unittest.mock.patch.object(self.parts, "command", lambda part, words, limit, **more: command(part, words, 1, **more)):
            sanitizer.sanitize(self.parts, self.build, "memcheck")
        part = self.only()
        self.assertEqual((part.result, part.detail, len(part.commands)), ("failed", "test_real_libraries: stopped after 1 s", 3))

    def test_a_missing_sanitizer_does_not_pass(self):
        with unittest.mock.patch.object(sanitizer, "sanitizer_of", lambda parts: None):
            sanitizer.sanitize(self.parts, self.build, "memcheck")
        self.assertEqual(self.only().result, "skipped")

    def facts(self, **more):
        return {"commit": "c0ffee", "date": "today", "gpus": ["H200"], "host": "here", "title": "GPU check", "programs": "built here", "environment": "driver 1", "seconds": 3,
                "passed": False, "nothing_failed": False, "finished": True, **more}

    def test_logs_and_a_report_exist_while_parts_still_run(self):
        self.parts.save = lambda: report.write(self.build, self.facts(finished=False), self.parts.done, self.parts.logs)
        seen = []

        def looks(part):
            self.parts.command(part, ["echo", "later"], 9)
            seen.append((self.build / "report.md").read_text())
            with tarfile.open(self.build / "logs.tar.gz") as archive:
                seen.append(archive.extractfile("logs/first-1.log").read().decode())

        self.parts.run("first", lambda part: self.parts.verdict(part, self.parts.command(part, ["echo", "hello"], 9)[0] == 0, "fine"))
        self.parts.run("second", looks)
        self.assertIn("Not finished", seen[0])
        self.assertIn("| first | passed |", seen[0])
        self.assertEqual(seen[1], "hello\n")
        self.assertEqual((self.parts.done[1].result, self.parts.done[1].detail), ("failed", "the check gave no result"))

    def test_the_beginning_and_end_of_a_long_log_are_packed(self):
        (self.build / "logs/long.log").write_bytes(b"begin" + b"x" * (3 << 20) + b"end")
        report.write(self.build, self.facts(), [], self.parts.logs)
        with tarfile.open(self.build / "logs.tar.gz") as archive:
            content = archive.extractfile("logs/long.log").read()
        self.assertTrue(content.startswith(b"begin") and content.endswith(b"end") and len(content) < 2.1 * 2**20)

    def test_lines_that_name_an_error_are_reported_from_any_place(self):
        script = "echo 'x.cu(3): error: no luck'; for i in $(seq 999); do echo line $i; done"
        self.parts.run("long", lambda part: self.parts.verdict(part, self.parts.command(part, ["sh", "-c", script], 9)[0] != 0, ""))
        report.write(self.build, self.facts(), self.parts.done, self.parts.logs)
        self.assertIn("x.cu(3): error: no luck", (self.build / "report.md").read_text().split("```")[1].split("\n"))

    def test_the_report_has_every_part_and_every_failure(self):
        self.parts.run("good", lambda part: self.parts.verdict(part, True, "fine"))
        self.parts.run("bad", lambda part: self.parts.verdict(part, self.parts.command(part, ["echo", "oops"], 9)[0] == 1, "a|b"))
        report.write(self.build, self.facts(), self.parts.done, self.parts.logs)
        record = json.loads((self.build / "report.json").read_text())
        self.assertEqual([part["result"] for part in record["parts"]], ["passed", "failed"])
        text = (self.build / "report.md").read_text()
        for wanted in ("c0ffee", "| good | passed |", "a\\|b", "oops", "Not everything passed", "driver 1"):
            self.assertIn(wanted, text)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
