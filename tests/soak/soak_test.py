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
    new=saved/$$-$step size=${#weights} state="{\"step\": $step}"
    [[ $FAKE_FAULT != "short file" ]] || size=1
    mkdir -p $new && printf '%s' "$weights" >$new/model.safetensors && printf '%s' "$state" >$new/state.json &&
      printf '{"files": {"model.safetensors": {"bytes": %s}, "state.json": {"bytes": %s}}}' $size ${#state} >$new/manifest.json &&
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
        self.home = pathlib.Path(temporary.name)
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
                               "unreadable at the end": "exit status 3", "process": "processes outlive it"}.items():
            with self.subTest(fault), self.fault(fault), patch("soak.ENDING", 0 if fault == "process" else soak.ENDING):
                made = self.made()
                made.run(chains=1)
                self.assertEqual(len(made.faults), 1, made.faults)
                self.assertIn(message, made.faults[0])
                self.assertIn("./dev soak 0 --seed 3 --chain 0", made.faults[0])
                self.assertTrue((self.home / "soak/fault-1/run").exists())
        self.assertEqual(soak.status_of(made.program)[0], "X")

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

    def test_a_run_that_hangs_is_ended(self):
        with self.fault("", stall="1"), patch("soak.PATIENCE", 0.2):
            made = self.made()
            made.run(chains=1)
        self.assertIn("it hangs", made.faults[0])

    def test_growing_memory_is_found(self):
        self.assertEqual(soak.growth([(1, {7: 10}), (2, {7: 90, 8: 50}), (3, {7: 95, 8: 50}), (4, {8: 52}), (5, {8: 99})], 2, 5), 5)
        self.assertEqual(soak.growth([], 2, 5), 0)
        peaks = soak.Program.peaks(unittest.mock.Mock(processes=lambda: [os.getpid()]))
        self.assertGreater(peaks[os.getpid()], 5)
        with self.fault(""), patch("soak.growth", lambda *_: 4.1):
            made = self.made()
            made.chain(5, "long", False)
        self.assertIn("its memory grew by 4.1 MiB", made.faults[0])

    def test_the_exit_status_is_1_after_a_fault_and_130_after_an_interrupt(self):
        for fault, error, status in ("", None, 0), ("file", None, 1), ("", KeyboardInterrupt, 130):
            with self.fault(fault), patch("soak.PARTS", 0):
                before = soak.Soak.chain
                with patch("soak.Soak.chain", side_effect=error, autospec=True) if error else contextlib.nullcontext():
                    self.assertEqual(soak.main(self.words), status)
            self.assertEqual(before, soak.Soak.chain)
        record = (self.home / "record.md").read_text()
        self.assertEqual([record.count(part) for part in ("| all | 2 |", "| all | 0 |", "interrupted", "No fault.")], [1, 2, 1, 2])

    def test_two_soaks_do_not_use_one_folder(self):
        with (self.home / "soak.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertEqual(soak.main(self.words), 2)
        self.assertFalse((self.home / "record.md").exists())

    def test_clocks_jump_but_for_the_monotonic_one(self):
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
