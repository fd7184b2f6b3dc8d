"""Tests whole calls of gpu_all.py that end early (killed at each part, stopped, out of time, a program that dies), and
the calls that follow."""
import signal
import time

from gpu_all_test import NAMES, ONE_AFTER_ANOTHER, PARTS, OnHost

# The first replicas exceed their own limit; the call ends in the second.
SHORT_LIMITS = """
train = checks.train
def train_shortly(parts, part, build, limit, *more, **variables):
    if part.name.startswith("mnist_convnet"):
        limit = 1
    if part.name.startswith("resnet18: 1"):
        parts.deadline = parts.deadline - parts.left() + 1.5
    return train(parts, part, build, limit, *more, **variables)
checks.train = train_shortly
"""


class Ends(OnHost):
    def reached(self):
        end = time.monotonic() + 60
        while not (self.host.home / "reached").exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_a_call_killed_at_any_part_leaves_a_correct_report_and_can_be_continued(self):
        self.host.patch = ONE_AFTER_ANOTHER
        out, words = "begin", []
        for number, (name, command) in enumerate(PARTS[1:], 1):
            last = name == NAMES[-1]
            self.host.behave(f"{'stop' if last else 'kill'}-call {command}\n")
            process = self.host.start("--out", out, *words)
            if last:
                self.reached()
                process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 143 if last else -signal.SIGKILL, output)
            results, record = self.host.results(out), self.host.record(out)
            self.assertEqual(list(results), NAMES)
            self.assertEqual((record["finished"], record["passed"]), (False, False))
            self.assertIn("**Not finished", (self.host.home / out / "report.md").read_text())
            self.assertEqual(list(results.values()), ["passed"] * number + ["interrupted"] + ["not run"] * (len(NAMES) - number - 1), name)
            self.check_files(out)
            words, out = ["--continue", out], f"after-{number}"
        self.host.behave("")
        status, output = self.host.call("--out", out, *words)
        self.assertEqual(status, 0, output)
        self.assertEqual(set(self.host.results(out).values()), {"passed"})
        asked = self.host.asked()
        self.assertEqual([line.split()[0] for line in asked.splitlines() if "nvidia-smi" not in line], ["dp_train", "dp_bench"], asked)
        self.assertIn("dp_train env", asked)  # gpu.py runs this command for its record
        self.assertIn("torch-compiled", asked)
        kept = self.host.kept(out)
        self.assertEqual(sum("--amp --max-steps 50" in line and "512" in line for line in kept["cache/dp/tuning-1"].splitlines()), 1)
        self.assertEqual(sum(name.startswith("records/") and name.endswith(".json") for name in kept), 3)
        self.assertIn("eager PyTorch / dp | 1.4 | 1.7 | 2.0 | 1.50", (self.host.home / out / "measured.md").read_text())

    def test_results_of_torch_compile_survive_a_stop(self):
        self.host.pretend(self.host.build / "apps/dp_bench/dp_bench", 'case "$line" in *torch-compiled*) ls "$TORCHINDUCTOR_CACHE_DIR" >>$home/asked; '
                          ': >"$TORCHINDUCTOR_CACHE_DIR/kernel"; [ -f $home/again ] || {{ : >$home/again; : >$home/reached; exec sleep 20; }} ;; esac\n'
                          'exec {python} $home/bench.py "$@"\n')
        self.host.pack()
        process = self.host.start("--out", "a")
        self.reached()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 143)
        process.stdout.close()
        self.assertEqual(self.host.results("a")[NAMES[-1]], "interrupted")
        self.host.behave("")
        status, output = self.host.call("--out", "b", "--continue", "a")
        self.assertEqual(status, 0, output)
        self.assertIn("kernel", self.host.asked().splitlines())
        self.check_files("b")

    def test_a_part_cut_by_the_end_of_the_call_is_run_again(self):
        first, second = (f"{name}: 1, 2, 4 replicas on one GPU" for name in ("mnist_convnet", "resnet18"))
        self.host.behave("hang --replicas-per-device\n")
        self.host.patch = SHORT_LIMITS
        status, output = self.host.call("--out", "a")
        results = self.host.results("a")
        self.assertEqual((status, results[first], results[second]), (1, "timed out", "interrupted"), output)
        self.host.behave("")
        self.host.patch = ""
        status, output = self.host.call("--out", "a", "--continue")
        results = self.host.results("a")
        self.assertEqual((status, results.pop(first), set(results.values())), (1, "timed out", {"passed"}), output)
        self.assertTrue(self.host.record("a")["finished"])

    def test_a_killed_program_fails_only_its_part(self):
        self.host.behave("die --graphs never\ndie --amp-dtype float16 --gpus\n")
        status, output = self.host.call("--out", "a")
        self.assertEqual(status, 1, output)
        results = self.host.results("a")
        self.assertEqual([name for name in NAMES if results[name] != "passed"], ["steps, fp16, compared with eager PyTorch", "resnet18: steps as graphs and one by one"])
        page = (self.host.home / "a/report.md").read_text()
        self.assertIn("**Not everything passed**", page)
        self.assertIn("ended by signal 9", page)
