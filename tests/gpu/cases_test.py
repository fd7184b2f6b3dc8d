"""Tests parts that run test programs, with fake programs."""
import pathlib
import re
import sys
import time
import unittest
import unittest.mock

import cases
from gpu_check_test import Pretended
from parts import SETTLED, Parts


class Cases(Pretended):
    def program(self, script, names="fine, a name\nanother"):
        """A fake Catch2 program with these cases. `script` runs the case named $1."""
        self.pretend("tests/cuda/test_gpu", f'if [ "$1" = --list-test-names-only ]; then printf "{names}\n"; exit 1; fi\n' + script)

    def run_cases(self, what=cases.gpu_tests):
        self.parts.done.clear()
        what(self.parts, self.build)
        return self.only()

    def test_each_case_of_a_program_is_run_by_name(self):
        self.program('echo "$1 with $DP_PLUGIN_PATH" >>"$0.ran"')
        part = self.run_cases()
        self.assertEqual((part.result, part.detail), ("passed", "2 passed, 0 failed, 0 skipped"))
        ran = (self.build / "tests/cuda/test_gpu.ran").read_text()
        self.assertEqual(sorted(ran.splitlines()), [f"another with {self.build}/apps/dp_train", f"fine\\, a name with {self.build}/apps/dp_train"])

    def test_a_case_that_fails_crashes_hangs_or_does_not_exist_is_named(self):
        for script, said in (("echo oops; exit 1", "exit status 1"), ("kill -9 $$", "ended by signal 9"), ("exec sleep 20", "stopped after 1 s"),
                             ("echo 'No test cases matched'", "no such case")):
            with self.subTest(said), unittest.mock.patch.object(cases, "CASE_SECONDS", 1):
                self.program(f'case "$1" in another) {script} ;; esac')
                part = self.run_cases()
                self.assertEqual((part.result, part.failed_tests, part.detail), ("failed", ["gpu: another"], "1 passed, 1 failed, 0 skipped"))
                self.assertIn(f"gpu: another: {said}", part.output_tail)
                self.assertIn(f"gpu: another: {said}", (self.build / "logs/gpu-tests.log").read_text())

    def test_a_program_without_cases_does_not_pass(self):
        self.program("", names="")
        part = self.run_cases()
        self.assertEqual((part.result, part.failed_tests), ("failed", ["gpu: the list of its cases"]))

    def test_a_program_whose_cases_cannot_be_listed_is_a_failed_test(self):
        programs = {name: self.build / f"bin/{name}" for name in ("good", "bad")}
        self.pretend("bin/good", 'case "$1" in --list*) echo a; exit 1 ;; esac')
        for script, said in (("", "no cases"), ("echo 'cannot open shared object file'; exit 127", "exit status 127: cannot open shared object file"),
                             ("echo a; kill -9 $$", "exit status -9: a"), ("exec sleep 600", "stopped after 1 s"),
                             ("echo 'Unrecognised token'; exit 255", "it has no option that lists its cases"), (None, "No such file or directory")):
            with self.subTest(said), unittest.mock.patch.object(cases, "LIST_SECONDS", 1 if "sleep" in str(script) else 60):
                self.pretend("bin/bad", script or "")
                if script is None:
                    programs["bad"].unlink()
                part = self.run_cases(lambda parts, build: cases.run(parts, "both", programs, 60, 1))
                self.assertEqual((part.result, part.failed_tests, part.detail), ("failed", ["bad: the list of its cases"], "1 passed, 1 failed, 0 skipped"))
                self.assertIn(said, part.output_tail)

    def test_a_program_with_catch2_3_is_listed(self):
        self.pretend("tests/cuda/test_gpu", 'case "$1" in --list-test-names-only) echo "Unrecognised token: $1"; exit 1 ;; --list-tests) echo "  a case" ;; esac')
        self.assertEqual(self.run_cases().detail, "1 passed, 0 failed, 0 skipped")

    def test_skips_pass_except_for_tests_that_need_the_gpu(self):
        for program, name, what, result in (
                ("cuda/test_gpu", "b", cases.gpu_tests, "failed"), ("cuda/test_real_libraries", "cuDNN equals own kernels", cases.real_libraries, "failed"),
                ("cuda/test_real_libraries", f"{cases.NEED_NO_GPU}x", cases.real_libraries, "passed"), ("kernels/test_ops", "b", cases.op_tests, "failed"),
                ("golden/test_resnet18", "torchvision's b", cases.op_tests, "passed")):
            with self.subTest(program=program, name=name):
                for other in ("cuda/test_gpu", "cuda/test_real_libraries", "kernels/test_ops", *(f"golden/test_{n}" for n in ("golden", "mnist_steps", "resnet18"))):
                    self.pretend(f"tests/{other}", 'case "$1" in --list*) echo passes ;; esac')
                self.pretend(f"tests/{program}", f'case "$1" in --list*) echo "passes\n{name}" ;; passes) ;; *) exit 4 ;; esac')
                part = self.run_cases(what)
                self.assertEqual((part.result, len(part.skipped_tests)), (result, 1))

    def test_notes_of_cases_that_pass_are_reported(self):
        self.program("echo 'note: conv: cudnn:eng3 loses NaN'")
        part = self.run_cases()
        self.assertEqual((part.result, part.notes), ("passed", ["conv: cudnn:eng3 loses NaN"] * 2))

    def test_cases_cut_by_the_end_of_the_call_are_run_again(self):
        self.program("exec sleep 20")
        self.parts.deadline = time.monotonic() + 21
        with unittest.mock.patch.object(Parts, "left", lambda parts: 99):
            self.parts.deadline = time.monotonic() + 2
            part = self.run_cases()
        self.assertEqual(part.result, "interrupted")
        self.assertNotIn(part.result, SETTLED)

    def test_only_library_tests_without_a_gpu_may_be_skipped(self):
        cuda = pathlib.Path(__file__).resolve().parents[1] / "cuda/vendor"
        for file, may_skip in (("real_libraries_test.cpp", True), ("gpu_libraries_test.cpp", False)):
            names = re.findall(r'^(?:TEST_CASE|DP_IN_\w+)\("([^"]+)"', (cuda / file).read_text(), re.MULTILINE)
            self.assertGreater(len(names), 2)
            self.assertEqual({name.startswith(cases.NEED_NO_GPU) for name in names}, {may_skip})

    def test_ops_are_tested_on_the_gpu_only(self):
        for program in ("kernels/test_ops", *(f"golden/test_{n}" for n in ("golden", "mnist_steps", "resnet18"))):
            self.pretend(f"tests/{program}", 'case "$1" in --list*) echo a; exit ;; esac; echo "on $DP_TESTED_KINDS, $(ls $DP_GOLDEN_FOLDER/layers.safetensors)"; exit 1')
        part = self.run_cases(cases.op_tests)
        self.assertIn("on cuda, ", part.output_tail)
        self.assertIn("tests/golden/layers.safetensors\n", part.output_tail)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
