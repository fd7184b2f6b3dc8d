"""gpu-check's own logic, over programs that pretend."""
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
import unittest.mock

import checks
import gpus
import report
from parts import Parts

JUNIT = """<testsuite><testcase name="a" status="run"/><testcase name="b" status="{b}">{inner}</testcase></testsuite>"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.build = pathlib.Path(self.folder.name)
        (self.build / "logs").mkdir()
        path = f"{self.build}/bin:/usr/bin:/bin"
        self.parts = Parts(self.build / "logs", {"PATH": path}, time.monotonic() + 60)
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
        self.assertEqual(self.parts.done[-1].result, "timed out")

    def bits(self, simulated, real):
        self.pretend("tests/cuda/op_bits_simulated", f"printf '{simulated}'")
        self.pretend("tests/cuda/op_bits", f"printf '{real}'")
        checks.op_bits(self.parts, self.build)
        return self.only()

    def test_equal_bits_pass(self):
        self.assertEqual(self.bits(r"bits add 3 aa\nx\nbits relu 3 bb\n", r"bits relu 3 bb\nbits add 3 aa\n").result, "passed")

    def test_other_bits_and_lines_that_lack_are_named(self):
        part = self.bits(r"bits add 3 aa\nbits relu 3 bb\n", r"bits add 3 ab\nbits mul 1 cc\n")
        self.assertEqual((part.result, part.failed_tests), ("failed", ["add 3", "mul 1", "relu 3"]))

    def test_no_bits_do_not_pass(self):
        self.assertEqual(self.bits("", "").result, "failed")

    def replicas(self, weights):
        words = 'while [ "$1" != --summary ]; do shift; done; file=$2\nwhile [ "$1" != --replicas-per-device ]; do shift; done\n'
        self.pretend("apps/dp_train/dp_train", words + f'echo "{{\\"weights_sha256\\": \\"{weights}\\"}}" >"$file"')
        checks.replicas(self.parts, self.build)
        return [part.result for part in self.parts.done]

    def test_weights_that_do_not_depend_on_the_replicas_pass(self):
        self.assertEqual(self.replicas("abc"), ["passed"] * 2)

    def test_weights_that_do_fail(self):
        self.assertEqual(self.replicas("abc$2"), ["failed"] * 2)

    def graphs(self, weights):
        words = 'while [ "$1" != --summary ]; do shift; done; file=$2\ncase "$*" in *--no-graphs*) how=eager;; *) how=graphs;; esac\n'
        self.pretend("apps/dp_train/dp_train", words + f'echo "{{\\"weights_sha256\\": \\"{weights}\\"}}" >"$file"')
        checks.graphs(self.parts, self.build)
        return self.only().result

    def test_graphs_of_the_same_weights_pass(self):
        self.assertEqual(self.graphs("abc"), "passed")

    def test_graphs_of_other_weights_fail(self):
        self.assertEqual(self.graphs("abc$how"), "failed")

    def test_mixed_precision_is_asked_for_and_named(self):
        self.pretend("apps/dp_train/dp_train", 'echo "$*" | grep -o "amp-dtype [a-z0-9]*"; exit 4')
        checks.digits(self.parts, self.build, "float16")
        part = self.only()
        self.assertEqual((part.name, part.detail), ("digits, two epochs, float16", "exit status 4: amp-dtype float16"))

    def test_training_that_fails_is_quoted(self):
        self.pretend("apps/dp_train/dp_train", "echo 'dp_train: out of memory'; exit 4")
        checks.digits(self.parts, self.build)
        self.assertEqual(self.only().detail, "exit status 4: dp_train: out of memory")

    def run_ctest(self, what, b, inner=""):
        xml = JUNIT.format(b=b, inner=inner)
        self.pretend("bin/ctest", 'while [ "$1" != --output-junit ]; do shift; done\n' + f"echo '{xml}' >\"$2\"")
        what(self.parts, self.build)
        return self.only()

    def test_a_failed_test_is_named(self):
        part = self.run_ctest(checks.all_tests, "fail", '<failure message="x"/>')
        self.assertEqual((part.result, part.failed_tests, part.detail), ("failed", ["b"], "1 passed, 1 failed, 0 skipped"))

    def test_skips_pass_but_not_of_gpu_tests(self):
        skip = '<skipped message="SKIP_RETURN_CODE=4"/>'
        self.assertEqual(self.run_ctest(checks.all_tests, "notrun", skip).result, "passed")
        self.parts.done.clear()
        part = self.run_ctest(checks.gpu_tests, "notrun", skip)
        self.assertEqual((part.result, part.skipped_tests), ("failed", ["b"]))

    def sanitized(self, script):
        self.pretend("bin/compute-sanitizer", script)
        checks.sanitizers(self.parts, self.build)
        self.assertEqual(len(self.parts.done), 4)
        return {part.result for part in self.parts.done}

    def test_the_cases_for_the_sanitizers_are_there(self):
        tests = pathlib.Path(__file__).resolve().parents[1]
        for names, files in ((checks.SANITIZED_OPS, "kernels/*_test.cpp"), (checks.SANITIZED_TRAINING, "cuda/gpu_test.cpp")):
            sources = "".join(file.read_text() for file in sorted(tests.glob(files)))
            for name in names:
                self.assertIn(f'TEST_CASE("{name.rstrip("*")}', sources)

    def test_a_sanitizer_without_errors_passes(self):
        self.assertEqual(self.sanitized("echo '========= ERROR SUMMARY: 0 errors'"), {"passed"})

    def test_a_sanitizer_with_errors_fails_and_so_does_one_that_ran_no_test(self):
        self.assertEqual(self.sanitized("echo '========= ERROR SUMMARY: 2 errors'; exit 9"), {"failed"})
        self.parts.done.clear()
        self.assertEqual(self.sanitized("echo 'No tests ran'; echo '========= ERROR SUMMARY: 0 errors'"), {"failed"})

    def test_a_sanitizer_that_is_not_there_did_not_pass(self):
        with unittest.mock.patch.object(checks, "sanitizer_of", lambda parts: None):
            checks.sanitizers(self.parts, self.build)
        self.assertEqual({part.result for part in self.parts.done}, {"not run"})

    def test_the_report_has_every_part_and_what_went_wrong(self):
        self.parts.run("good", lambda part: self.parts.verdict(part, True, "fine"))
        self.parts.run("bad", lambda part: self.parts.verdict(part, self.parts.command(part, ["echo", "oops"], 9)[0] == 1, "a|b"))
        facts = {"commit": "c0ffee", "date": "today", "gpus": ["H200"], "host": "here", "environment": "driver 1", "seconds": 3,
                 "passed": False}
        report.write(self.build, facts, self.parts.done)
        record = json.loads((self.build / "report.json").read_text())
        self.assertEqual([part["result"] for part in record["parts"]], ["passed", "failed"])
        text = (self.build / "report.md").read_text()
        for wanted in ("c0ffee", "| good | passed |", "a\\|b", "oops", "Not everything passed", "driver 1"):
            self.assertIn(wanted, text)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
