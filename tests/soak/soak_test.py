"""Runs ./dev soak over a fake dp_train, which does something wrong if it is asked to."""
import contextlib
import fcntl
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest.mock import patch

import soak

# Counts steps instead of training, and saves at every sixth. Its weights are the steps of the run. FAKE_FAULT: what it
# does wrong. FAKE_STALL: a new run goes on to its sixth step and waits there for a signal.
PROGRAM = r"""#!/bin/bash
trap 'stopped=130' INT
trap 'stopped=143' TERM
case $1 in
  status) exit 0 ;;
  convert) [[ $FAKE_FAULT != "unreadable at the end" ]] || exit 3; exit 0 ;;
esac
while (($#)); do [[ $1 != --max-steps ]] || most=$2; shift; done
last=run/checkpoints/last temporary=run/checkpoints/.last.tmp-1-1 step=0 resumed=0
mkdir -p run/checkpoints
rm -f $temporary
if [[ -e $last ]]; then
  state=$(<$last/state.json) weights=$(<$last/model.safetensors) resumed=1
  step=${state//[^0-9]/}
  case $FAKE_FAULT in
    "other weights") weights+="!" ;;
    skipped) echo "dp_train: checkpoint 'last' cannot be read and is skipped (why); using 'best'" >&2 ;;
    "lost step") step=-1 ;;
  esac
fi
[[ $FAKE_FAULT != process ]] || sleep 600 &
[[ $FAKE_FAULT != file ]] || : >"$TMPDIR/left"
while ((step < most)) && { [[ -z $stopped ]] || ((FAKE_STALL && !resumed && step < 6)); }; do
  step=$((step + 1)) weights+=" $step"
  if ((step % 6 == 0)) || [[ $FAKE_FAULT == "lost step" ]]; then
    new=saved/$$-$step size=${#weights} state="{\"step\": $step}" file=model.safetensors
    [[ $FAKE_FAULT != "short file" ]] || size=1
    [[ $FAKE_FAULT != "no weights" ]] || file=model
    files="\"$file\": {\"bytes\": $size}, \"state.json\": {\"bytes\": ${#state}}"
    [[ $FAKE_FAULT != "empty manifest" ]] || files=
    mkdir -p $new && printf '%s' "$weights" >$new/$file && printf '%s' "$state" >$new/state.json &&
      printf '{"files": {%s}}' "$files" >$new/manifest.json &&
      ln -s ../../$new $temporary && mv -T $temporary $last || { status=$?; exit ${stopped:-$((status > 128 ? status : 7))}; }
  fi
  while [[ -z $stopped && $FAKE_STALL == 1 ]] && { ((!resumed && step == 6)) || [[ $resumed$FAKE_FAULT == "1lost step" ]]; }; do sleep 0.01; done
done
[[ $FAKE_FAULT != "hidden file" ]] || : >run/.left
[[ -z $stopped || $FAKE_FAULT != "exit status" ]] || exit 4
exit ${stopped:-0}
"""


class Soaks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.home = pathlib.Path(temporary.name).resolve()
        (self.home / "fake").write_text(PROGRAM)
        (self.home / "fake").chmod(0o755)
        self.words = ["0", "--seed", "3", "--program", str(self.home / "fake"), "--record", str(self.home / "record.md")]
        patched = patch.multiple("soak", STEPS=18, LONG_EPOCHS=2, FOLDER=self.home / "soak", CLOCK=pathlib.Path(CLOCK))
        patched.start()
        self.addCleanup(patched.stop)

    def made(self):
        made = soak.Soak(soak.options_of(self.words))
        self.addCleanup(made.disk.close)
        return made

    def processes(self):
        """Those that work in the folder of the soak."""
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found += [process] if os.readlink(f"/proc/{process}/cwd").startswith(str(self.home)) else []
        return found

    @contextlib.contextmanager
    def fault(self, fault, stall="0"):
        with patch.dict("os.environ", FAKE_FAULT=fault, FAKE_STALL=stall), contextlib.redirect_stdout(io.StringIO()):
            yield

    def test_disturbed_runs_without_a_fault_end_with_the_weights_of_undisturbed_ones(self):
        with self.fault(""), patch("soak.PARTS", 3):
            made = self.made()
            made.run(chains=8)
        self.assertEqual(made.faults, [])
        self.assertEqual({name: len(digests) for name, digests in made.digests.items()}, dict.fromkeys(made.modes, 1))
        self.assertIn("| all | 13 |", made.table())

    def test_a_fault_of_an_undisturbed_run_is_found(self):
        for fault, message in {"file": "files are left behind", "hidden file": "files are left behind", "short file": "is incomplete",
                               "empty manifest": "lists no files", "no weights": "the last checkpoint has no weights",
                               "unreadable at the end": "exit status 3", "process": "processes outlive it"}.items():
            with self.subTest(fault), self.fault(fault), patch("soak.ENDING", 0 if fault == "process" else soak.ENDING):
                made = self.made()
                made.run(chains=1)
                self.assertEqual(len(made.faults), 1, made.faults)
                self.assertIn(message, made.faults[0])
                self.assertIn("./dev soak 0 --seed 3 --chain 0", made.faults[0])
                self.assertTrue((self.home / "soak/fault-1/run").exists())
                self.assertEqual(self.processes(), [])

    def test_a_fault_of_a_resumed_run_is_found(self):
        for fault, message in {"other weights": "it ends with the weights", "skipped": "a checkpoint cannot be read", "lost step": "after one of step",
                               "exit status": "exit status 4, not one of [0, 143]"}.items():
            with self.subTest(fault), patch("soak.KINDS", ["TERM"] if fault in ("lost step", "exit status") else ["KILL", "TERM", "INT"]), patch("soak.PARTS", 99):
                with self.fault(""):
                    made = self.made()
                    made.chain(0, "float32", False)
                with self.fault(fault, stall="1"):
                    made.chain(7, "float32", True)
                self.assertEqual(len(made.faults), 1, made.faults)
                self.assertIn(message, made.faults[0])

    def test_a_run_that_hangs_is_ended_before_its_folder_is_copied(self):
        running = []
        with self.fault("", stall="1"), patch("soak.PATIENCE", 0.2), \
             patch("soak.shutil.copytree", lambda *_, **__: running.append(self.processes())):
            made = self.made()
            made.run(chains=1)
        self.assertIn("it hangs", made.faults[0])
        self.assertEqual(running, [[]])

    def test_a_chain_is_repeated_with_its_layout_after_an_undisturbed_one(self):
        self.words += ["--chain", "19"]
        with self.fault(""), patch("soak.Program", wraps=soak.Program) as programs:
            made = self.made()
            made.run()
        runs = [" ".join(call.args[0]) for call in programs.call_args_list if "--model" in call.args[0]]
        self.assertEqual([run.count(layout) for run, layout in zip(runs, [soak.SHARDS[0], soak.SHARDS[2]])], [1, 1])
        self.assertEqual((len(runs), made.totals["long"]["chains"], made.faults), (2, 2, []))

    def test_growing_memory_is_found(self):
        self.assertEqual(soak.growth([(1, {7: 10}), (2, {7: 90, 8: 50}), (3, {7: 95, 8: 50}), (4, {8: 52}), (5, {8: 99})], 2, 5), 5)
        for samples in [], [(2, {7: 10, 8: 50})]:
            self.assertIsNone(soak.growth(samples, 2, 5))
        peaks = soak.Program.peaks(unittest.mock.Mock(processes=lambda: [os.getpid()]))
        self.assertGreater(peaks[os.getpid()], 5)
        for grown, shown in (4.1, "4.1"), (None, "not measured"):
            with self.fault(""), patch("soak.growth", lambda *_: grown):
                made = self.made()
                made.chain(5, "long", False)
            self.assertEqual(["its memory grew by 4.1 MiB" in fault for fault in made.faults], [True] if grown else [])
            self.assertTrue(made.table().endswith(f"| {shown} |"))

    def test_the_exit_status_is_1_after_a_fault_and_130_after_an_interrupt(self):
        for fault, error, status in ("", None, 0), ("file", None, 1), ("", KeyboardInterrupt, 130):
            with self.fault(fault), patch("soak.PARTS", 0):
                with patch("soak.Soak.chain", side_effect=error, autospec=True) if error else contextlib.nullcontext():
                    self.assertEqual(soak.main(self.words), status)
        record = (self.home / "record.md").read_text()
        self.assertEqual([record.count(part) for part in ("| all | 2 |", "| all | 0 |", "interrupted", "No fault.")], [1, 2, 1, 2])

    def test_two_soaks_do_not_use_one_folder(self):
        with (self.home / "soak.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertEqual(soak.main(self.words), 2)
        self.assertFalse((self.home / "record.md").exists())

    def test_only_the_real_time_clock_jumps(self):
        program = "import time; print(time.time(), time.monotonic())"
        (self.home / "clock").write_bytes((10 ** 9).to_bytes(8, "little"))
        times = []
        for variables in {}, {"LD_PRELOAD": CLOCK, "DP_CLOCK": str(self.home / "clock")}:
            printed = subprocess.run([sys.executable, "-SE", "-c", program], env=variables, stdout=subprocess.PIPE, check=True).stdout
            times.append([float(word) for word in printed.split()])
        self.assertGreater(times[1][0], times[0][0] + 10 ** 9 - 1)
        self.assertLess(times[1][1], times[0][1] + 10 ** 8)


if __name__ == "__main__":
    CLOCK = sys.argv.pop(1)
    unittest.main()
