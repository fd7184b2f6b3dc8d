"""Tests test_cases.py: which tests are left out or share a process, and which failures count. The programs are shell
scripts."""
import pathlib
import tempfile
import time
import unittest
import unittest.mock

import sandbox
import test_cases
from test_cases import Case, Runner, cases_of, chunks, ordered


class Pretended(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def case(self, name, script="", seconds=0.1, **more):
        program = self.home / f"test_{name.split(':')[0]}"
        program.write_text("#!/bin/sh\n" + script + "\n")
        program.chmod(0o755)
        case = Case(name, [str(program), name.split(":", 1)[1].strip()], str(self.home), **more)
        case.seconds = seconds
        return case


class Lists(Pretended):
    def test_nightly_and_fake_program_tests_and_most_simulated_ones_are_left_out(self):
        def test(name, label=None, folder="/b/tests/data", command=("/b/test_data", "x")):
            properties = [{"name": "WORKING_DIRECTORY", "value": folder}] + ([{"name": "LABELS", "value": [label]}] if label else [])
            return {"name": name, "command": list(command), "properties": properties}
        answer = {"tests": [test("a"), test("b", "nightly"), test("c", "all-simt"), test("d", "all"), test("e", folder="/src/tests/gpu"),
                            test("f", "all-simt", command=("/b/tests/cuda/test_simulated", "x")),
                            test("g", "fast-simt", command=("/b/tests/cuda/test_simulated_gemm", "x")),
                            {"name": "test_cuda_NOT_BUILT", "properties": []}]}
        self.assertEqual([case.name for case in cases_of(answer)], ["a", "d", "f"])
        self.assertEqual([case.tier for case in cases_of(answer)], ["fast", "all", "all"])

    def test_the_folders_left_out_are_there(self):
        for folder in sandbox.LEFT_OUT:
            self.assertTrue((sandbox.HERE.parent / folder).is_dir(), folder)

    def test_the_concepts_tests_come_first_then_the_cheapest(self):
        cases = [self.case("a: far", seconds=2), self.case("b: near", seconds=1), self.case("c: a Plan is kept", seconds=5)]
        self.assertEqual([case.name for case in ordered(cases, "plan_builder")], ["c: a Plan is kept", "b: near", "a: far"])

    def test_the_fast_tier_comes_first_and_shares_no_process_with_the_other(self):
        cases = [self.case("a: plan", tier="all"), self.case("a: far"), self.case("a: near", tier="all")]
        self.assertEqual([[case.name for case in chunk] for chunk in chunks(ordered(cases, "plan"))], [["a: far"], ["a: plan", "a: near"]])

    def test_cheap_cases_of_a_program_share_a_process(self):
        cases = [self.case("a: 1"), self.case("b: 1"), self.case("a: 2"), self.case("a: 3", seconds=5), self.case("a: 4"),
                 self.case("b: 2", environment=["X=1"]), Case("no arguments", ["/b/test_a"])]
        self.assertEqual([[case.name for case in chunk] for chunk in chunks(cases)],
                         [["a: 1", "a: 2"], ["b: 1"], ["a: 3"], ["a: 4"], ["b: 2"], ["no arguments"]])

    def test_a_limit_follows_from_the_usual_time(self):
        self.assertEqual(test_cases.limit([self.case("a: x", seconds=2), self.case("a: y", seconds=1)]), 20)


class Runs(Pretended):
    def setUp(self):
        super().setUp()
        patience = unittest.mock.patch("test_cases.limit", return_value=600)  # the machine may be busy with other work
        patience.start()
        self.addCleanup(patience.stop)
        self.runner = Runner(2, f"{self.folder.name}/scratch")

    def outcome(self, case, limit=120):
        return self.runner.run([case], limit).outcome

    def test_outcomes(self):
        self.assertEqual(self.outcome(self.case("a: x", "exit 0")), "passed")
        self.assertEqual(self.outcome(self.case("a: x", "exit 3")), "failed")
        self.assertEqual(self.outcome(self.case("a: x", "exit 4")), "skipped")
        self.assertEqual(self.outcome(self.case("a: x", "kill -9 $$")), "failed")
        self.assertEqual(self.outcome(self.case("a: x", "echo yes; exit 1", passes_with="y.s")), "passed")
        self.assertEqual(self.outcome(self.case("a: x", "exit 1", must_fail=True)), "passed")
        self.assertEqual(self.outcome(self.case("a: x", 'test "$X" = 1', environment=["X=1"])), "passed")
        self.assertEqual(self.outcome(Case("a: x", [str(self.home / "gone"), "x"], str(self.home))), "failed")

    def assert_ends(self, process):
        for _ in range(6000):
            try:
                if pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    return
            except OSError:
                return
            time.sleep(0.02)
        self.fail("what the test started still runs")

    def test_a_hanging_test_is_killed_with_its_children(self):
        child = self.home / "child"
        # The limit is reached when the child has started.
        with unittest.mock.patch("time.monotonic", lambda: 1000 if child.exists() and child.read_text() else 0):
            self.assertEqual(self.outcome(self.case("a: x", "sleep 3600 & echo $! > child; wait"), 3), "timed out")
        self.assert_ends(child.read_text().strip())

    def test_processes_left_in_another_process_group_are_killed(self):
        has_own_session = 'test "$(cut -d " " -f 6 /proc/$!/stat)" = $!'
        script = f"setsid sleep 3600 & echo $! > child; until {has_own_session}; do sleep 0.01; done"
        self.assertEqual(self.outcome(self.case("a: x", script)), "passed")
        child = (self.home / "child").read_text().strip()
        self.assertTrue(pathlib.Path(f"/proc/{child}").exists())
        self.runner.clean()
        self.assert_ends(child)

    def test_a_chunk_names_its_failed_case(self):
        script = 'echo "$*" >> ran; case "$1" in *two*) echo "two"; exit 1 ;; esac'
        cases = [self.case("a: one", script), self.case("a: two", script)]
        case, result = self.runner.first_failure([cases])
        self.assertEqual((case.name, result.outcome), ("a: two", "failed"))
        self.assertEqual((self.home / "ran").read_text().split("\n")[:2], ["one,two --abort", "two"])

    def test_the_failed_case_of_a_chunk_is_found_among_names_with_colons(self):
        script = 'echo "Filters: $1"; case "$1" in *one*) printf "%s\\n" "scaling:" " one"; exit 1 ;; esac; echo "$1" >> ran'
        cases = [self.case("a:scaling: two", script), self.case("a:scaling: one", script), self.case("a:the model", script)]
        case, result = self.runner.first_failure([cases])
        self.assertEqual((case.name, result.outcome), ("a:scaling: one", "failed"))
        self.assertFalse((self.home / "ran").exists())  # no other case had to run again

    def test_a_failure_that_does_not_repeat_is_ignored(self):
        self.assertIsNone(self.runner.first_failure([[self.case("a: once", "test -e been || { touch been; exit 1; }")]]))

    def test_the_first_failure_ends_the_others(self):
        begin = time.monotonic()
        slow = [[self.case(f"b{i}: slow", "sleep 3600", seconds=3600)] for i in range(5)]
        case, _ = self.runner.first_failure([[self.case("a: bad", "exit 1")]] + slow)
        self.assertEqual(case.name, "a: bad")
        self.assertEqual(self.outcome(self.case("a: fine", "sleep 0.2")), "passed")
        self.assertLess(time.monotonic() - begin, 600)

    def test_the_time_of_a_passing_chunk_is_learned(self):
        cases = [self.case("a: x", "exit 0", seconds=3000), self.case("a: y", "exit 0", seconds=1000)]
        self.assertIsNone(self.runner.first_failure([cases]))
        self.assertLess(cases[0].seconds, 1500)
        self.assertAlmostEqual(cases[0].seconds / cases[1].seconds, 3)


if __name__ == "__main__":
    unittest.main()
