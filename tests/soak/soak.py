#!/usr/bin/env python3
"""Trains small networks, kills and disturbs the runs at random moments, resumes them on other devices, and compares
what they end with (docs/internals/testing.md)."""
import argparse
import collections
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import typing

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = SOURCE / "build/release/apps/dp_train/dp_train"
CLOCK = SOURCE / "build/release/tests/soak/libclock_jumps.so"
FOLDER = SOURCE / "build/soak"
PATIENCE = 600     # seconds; separates a program that ends from one that hangs
ENDING = PATIENCE  # seconds for the processes that a run has started
PARTS = 12         # disturbed parts of a chain; the next ones are undisturbed
GROWTH = 4         # MiB that the peak memory of a process may grow by in the last three quarters of a long run
SMALL_DISK = 96    # MiB; a checkpoint has 10

STEPS = 60         # ten epochs
LONG_EPOCHS = 60
COMMON = "--dataset synthetic --images 96 -b 16 --momentum 0.9 --lr 0.01 --lr-scheduler constant " \
         f"--threads-per-replica 1 --deterministic --resume auto --timeout {PATIENCE} --quiet --output-dir run"
# Of one replica, several, and pipelines. With four logical shards all have the same bits.
SHARDS = ["--cpu 1 --pipeline-stages 1", "--cpu 2 --pipeline-stages 1", "--cpu 4 --pipeline-stages 1",
          "--cpu 2 --pipeline-stages 2 --micro-batches 4", "--cpu 4 --pipeline-stages 2 --micro-batches 2"]
DP, DDP = ["--cpu 2"], ["--cpu 2 --engine ddp"]
LAST = "run/checkpoints/last"
UNREADABLE = re.compile("cannot be read and is skipped|no checkpoint in .* can be read")
SAVES = ["1,1steps", "1,2steps", "1,5steps", "1,1s"]

# How a part may end, besides 0. The exit status after signal n is 128 + n, as for a shell.
STATUS = {"KILL": {137}, "TERM": {143}, "INT": {130}, "STOP": set(), "disk full": {7}, "clock": set()}
KINDS = list(STATUS)


class Mode(typing.NamedTuple):
    options: str
    sections: list       # (last step, layouts): a run of these steps uses one of these layouts
    variables: dict = {}
    epochs: int = STEPS // 6
    disturbed: bool = True
    model: str = "mnist_convnet"  # has dropout


def modes():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    # Emulated convolutions are slow.
    amp = {} if "avx512_bf16" in flags else {"variables": {"DP_EMULATE_BF16": "1"}, "model": "mlp"}
    shards, long_run = "--logical-shards 4", {"epochs": LONG_EPOCHS, "disturbed": False}
    return {
        "float32": Mode(shards, [(STEPS, SHARDS)]),
        "average": Mode(f"{shards} --model-ema --model-ema-decay 0.9", [(STEPS, SHARDS)]),
        "amp": Mode(f"{shards} --amp", [(STEPS, SHARDS)], **amp),
        "bfloat16 reduction": Mode(f"{shards} --reduce-dtype bfloat16", [(STEPS, SHARDS)]),
        "both engines": Mode("", [(STEPS // 3, DP), (2 * STEPS // 3, DDP), (STEPS, DP)]),
        "long": Mode(f"{shards} --model-ema --model-ema-decay 0.9", [(6 * LONG_EPOCHS, SHARDS)], **long_run),
        "long ddp": Mode("", [(6 * LONG_EPOCHS, DDP)], **long_run),
    }


class Fault(Exception):
    pass


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def status_of(process):
    """(state, session) of a process; of one that does not exist ("X", 0)."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[3])
    except (OSError, IndexError):
        return "X", 0


class Program:
    """A program that runs in a session of its own, with the processes that it starts."""

    def __init__(self, command, folder, variables):
        self.messages = folder / "messages"
        self.status, self.peak = None, 0
        with self.messages.open("w") as messages:
            self.popen = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.DEVNULL, stderr=messages, start_new_session=True)

    def ended(self):
        if self.status is None:
            process, status, usage = os.wait4(self.popen.pid, os.WNOHANG)
            if process:
                code = self.popen.returncode = os.waitstatus_to_exitcode(status)
                self.status, self.peak = (code if code >= 0 else 128 - code), usage.ru_maxrss / 1024
        return self.status is not None

    def wait(self, seconds, what=lambda: False):
        """Waits for these seconds, for the end of the program, or until `what` is true. Returns whether it runs."""
        until = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < until and not what():
            time.sleep(0.002)
        return not self.ended()

    def processes(self):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        states = {process: status_of(process) for process in found}
        return [process for process, (state, session) in states.items() if session == self.popen.pid and state not in "ZX"]

    def send(self, number, process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    def end(self):
        while (left := self.processes()) or not self.ended():
            for process in left:
                self.send(signal.SIGKILL, process)
            time.sleep(0.01)

    def peaks(self):
        """MiB of the processes' peak memory."""
        found = {}
        for process in self.processes():
            with contextlib.suppress(OSError):
                text = pathlib.Path(f"/proc/{process}/status").read_text()
                found.update({process: int(kib) / 1024 for kib in re.findall(r"VmHWM:\s*(\d+)", text)})
        return found


def growth(samples, begin, end):
    """The largest growth of a process between these steps, in MiB. samples: (step, {process: peak in MiB}). None if no
    process has two samples."""
    first, grown = {}, []
    for step, peaks in samples:
        for process, peak in peaks.items() if begin <= step < end else ():
            grown += [peak - first[process]] if process in first else []
            first.setdefault(process, peak)
    return max(grown, default=None)


class SmallDisk:
    """A file system in memory that can be filled. Without the right to mount one, files have a limited size."""

    def __init__(self, folder):
        self.folder = folder
        self.close()  # a soak that was killed leaves it mounted
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}m", "none", str(folder)]
        self.mounted = shutil.which("mount") is not None and \
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        self.how = "disk full: a file system in memory is filled" if self.mounted else "disk full: files have a limited size"
        self.ballast = folder / "ballast"

    def fill(self, room):
        """Leaves `room` bytes free."""
        with self.ballast.open("wb") as file:
            disk = os.statvfs(self.folder)
            with contextlib.suppress(OSError):  # the run has written meanwhile
                os.posix_fallocate(file.fileno(), 0, max(1, disk.f_bavail * disk.f_frsize - room))

    def release(self):
        self.ballast.unlink(missing_ok=True)

    def close(self):
        if os.path.ismount(self.folder):
            subprocess.run(["umount", "--lazy", str(self.folder)])


class Chain:
    """A run, from its begin to its last step."""

    def __init__(self, soak, number, name, disturbed):
        self.soak, self.name, self.mode, self.disturbed = soak, name, soak.modes[name], disturbed
        self.round = number // len(soak.modes)
        self.random = random.Random(f"{soak.options.seed} {number} {name}")
        self.folder = soak.folder / f"chain-{number}"
        if disturbed and self.random.random() < 0.5:
            self.folder = soak.disk.folder / f"chain-{number}"
        self.step, self.did = 0, []

    def run(self):
        """The digest of the last checkpoint."""
        (self.folder / "temporary").mkdir(parents=True)
        for until, layouts in self.mode.sections:
            while self.part(until, layouts) != 0:
                pass
        self.check_end()
        digest, files = hashlib.sha256(), sorted((self.folder / LAST).glob("*.safetensors"))
        if not files:
            raise Fault("the last checkpoint has no weights")
        for file in files:
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def kinds(self):
        """The disturbances of the next part."""
        if not self.disturbed or len(self.did) >= PARTS:
            return []
        here = self.folder.parent == self.soak.disk.folder or not self.soak.disk.mounted
        kinds = [kind for kind in [*KINDS, "disk full"] if (here or kind != "disk full") and (self.soak.clock or kind != "clock")]
        return self.random.choices(kinds, k=self.random.randint(1, 3))

    def part(self, until, layouts):
        """Starts or resumes the run, disturbs it, and checks what it leaves. Returns its exit status."""
        layout = self.random.choice(layouts) if self.disturbed else layouts[self.round % len(layouts)]
        kinds = self.kinds()
        command = [self.soak.program, "--model", self.mode.model, *COMMON.split(), *self.mode.options.split(), *layout.split(), "--epochs", str(self.mode.epochs),
                   "--max-steps", str(until), "--save-every", self.random.choice(SAVES) if self.disturbed else "1"]
        variables = {**self.mode.variables, "TMPDIR": str(self.folder / "temporary"), "DP_RESTART_PAUSE": "0"}
        if self.disturbed and self.random.random() < 0.3:
            command += ["--max-restarts", "3"]
        if "disk full" in kinds and not self.soak.disk.mounted:
            command = ["prlimit", f"--fsize={self.random.randrange(6 << 20)}", *command]
        if "clock" in kinds:
            self.jump()
            variables.update(LD_PRELOAD=str(self.soak.clock), DP_CLOCK=str(self.folder / "clock"))
        self.soak.totals[self.name].update({"parts": 1, "resumes": int(self.step > 0)})
        program = self.soak.running = Program(command, self.folder, variables)
        did = [kind for kind in kinds if self.disturb(program, kind)]
        self.soak.totals[self.name].update(did)
        self.did.append("+".join(did) or "none")
        self.watch(program)
        self.soak.disk.release()
        self.check_part(program, set().union({0}, *(STATUS[kind] for kind in kinds)), until)
        self.soak.running = None
        return program.status

    def disturb(self, program, kind):
        """Returns whether the program ran at that moment."""
        seconds, during_save = self.soak.seconds[self.name], self.random.random() < 0.4
        if not program.wait(self.random.uniform(0, 0.5) * seconds):
            return False
        if during_save and program.wait(seconds, lambda: any((self.folder / "run/checkpoints").glob(".*.tmp-*"))):
            self.soak.totals[self.name]["during a save"] += 1
        any_process, pause = self.random.choice(program.processes() or [program.popen.pid]), self.random.uniform(0, min(1, seconds))
        if kind == "KILL":
            program.send(signal.SIGKILL, any_process)
        elif kind == "TERM":
            program.send(signal.SIGTERM, program.popen.pid)
        elif kind == "INT":  # as Ctrl-C, to every process of the group
            program.send(signal.SIGINT, -program.popen.pid)
        elif kind == "STOP":
            program.send(signal.SIGSTOP, any_process)
            program.wait(pause)
            program.send(signal.SIGCONT, any_process)
        elif kind == "disk full" and self.soak.disk.mounted:
            self.soak.disk.fill(self.random.randrange(12 << 20))
            if self.random.random() < 0.5:
                program.wait(pause)
                self.soak.disk.release()
        elif kind == "clock":
            self.jump()
        return True

    def jump(self):
        """By up to 30 days, into the past or the future."""
        with (self.folder / "clock").open("r+b" if (self.folder / "clock").exists() else "wb") as file:
            file.write(struct.pack("q", self.random.randrange(-30 * 86400, 30 * 86400)))

    def watch(self, program):
        """Waits for the end of the program, and watches the memory of a long run."""
        samples, begin = [], time.monotonic()
        end = begin + PATIENCE * (1 if self.mode.disturbed else 10)
        while program.wait(PATIENCE if self.mode.disturbed else 0.05) and time.monotonic() < end:
            samples.append((read_json(self.folder / LAST / "state.json").get("step", 0), program.peaks()))
        if not program.ended():
            raise Fault("it hangs")
        if not self.disturbed:
            self.soak.seconds[self.name] = max(self.soak.seconds.get(self.name, 0), time.monotonic() - begin)
        total = self.soak.totals[self.name]
        total["peak"] = max(total["peak"], round(program.peak))
        if not self.mode.disturbed:
            steps = self.mode.sections[-1][0]
            grown = growth(samples, steps / 4, steps)
            if grown is not None:
                total["growth"] = max(total["growth"], round(grown, 1))
            if grown is not None and grown > GROWTH:
                raise Fault(f"its memory grew by {grown:.1f} MiB after the first quarter of its epochs")

    def check_part(self, program, expected, until):
        messages, end = program.messages.read_text(errors="replace"), time.monotonic() + ENDING
        while program.processes():
            if time.monotonic() > end:
                raise Fault(f"processes outlive it: {program.processes()}")
            time.sleep(0.01)
        self.soak.totals[self.name]["restarts"] += len(re.findall(r"restart \d+ of ", messages))
        if program.status not in expected:
            raise Fault(f"exit status {program.status}, not one of {sorted(expected)}: {messages[-1000:]}")
        if UNREADABLE.search(messages):
            raise Fault(f"a checkpoint cannot be read: {messages[-1000:]}")
        for manifest in (self.folder / "run/checkpoints").glob("[!.]*/manifest.json"):
            files = read_json(manifest).get("files")
            if not files:
                raise Fault(f"{manifest} cannot be read or lists no files")
            for name, listed in files.items():
                file = manifest.parent / name
                if not file.exists() or file.stat().st_size != listed.get("bytes"):
                    raise Fault(f"{manifest.parent} is incomplete: {name}")
        step = read_json(self.folder / LAST / "state.json").get("step", 0)
        if step < self.step or program.status == 0 and step != until:
            raise Fault(f"exit status {program.status} and a checkpoint of step {step}, after one of step {self.step}; the run ends at {until}")
        self.step = step

    def check_end(self):
        left = [str(path) for path in (self.folder / "temporary").iterdir()]
        left += [str(path) for path in (self.folder / "run").rglob(".*") if path.name != ".lock"]
        if left:
            raise Fault(f"files are left behind: {left}")
        for words in [["status", "run"], *(["convert", str(path), "-o", "copy.safetensors"] for path in sorted((self.folder / "run/checkpoints").iterdir()))]:
            program = self.soak.running = Program([self.soak.program, *words], self.folder, {})
            program.wait(PATIENCE)
            if program.status != 0:
                raise Fault(f"{' '.join(words)}: exit status {program.status}: {program.messages.read_text(errors='replace')[-1000:]}")
            self.soak.running = None


class Soak:
    def __init__(self, options):
        self.options, self.begin = options, time.monotonic()
        self.modes = modes()
        self.program = str(options.program.resolve())
        if not os.access(self.program, os.X_OK):
            sys.exit(f"dev soak: {self.program}: no such program; ./dev build dp_train makes it")
        self.clock = CLOCK if CLOCK.exists() else None
        self.folder = FOLDER
        self.disk = SmallDisk(self.folder / "disk")
        self.totals = {name: collections.Counter() for name in self.modes}
        self.digests = {name: [] for name in self.modes}  # the first one is that of an undisturbed run
        self.seconds = {}                                 # of the longest part of an undisturbed run
        self.faults, self.running = [], None

    def say(self, line):
        print(f"== {line}", flush=True)

    def chain(self, number, name, disturbed):
        chain, fault = Chain(self, number, name, disturbed), ""
        try:
            digest = chain.run()
            self.totals[name]["chains"] += 1
            if digest not in self.digests[name]:
                self.digests[name].append(digest)
            if digest != self.digests[name][0]:
                raise Fault(f"it ends with the weights {digest[:12]}, the undisturbed run with {self.digests[name][0][:12]}")
        except Fault as found:
            fault = " ".join(str(found).split())
        finally:
            if self.running is not None:
                self.running.end()
            self.running = None
            self.disk.release()
        if fault:
            self.faults.append(f"chain {number}, {name}, {', '.join(chain.did)}: {fault}. Again: ./dev soak 0 --seed {self.options.seed} --chain {number}")
            self.say(f"FAULT: {self.faults[-1]}")
            kept = self.folder / f"fault-{len(self.faults)}"
            shutil.copytree(chain.folder, kept, symlinks=True, ignore_dangling_symlinks=True)
            self.say(f"its folder: {kept}")
        shutil.rmtree(chain.folder, ignore_errors=True)
        minutes = (time.monotonic() - self.begin) / 60
        self.say(f"{minutes:.1f} min, chain {number}, {name}: {', '.join(chain.did)}; step {chain.step}; {'fault' if fault else digest[:12]}")

    def run(self, chains=None):
        self.say(f"seed {self.options.seed}; {self.program}; {self.disk.how}; clock jumps: {'yes' if self.clock else 'no'}")
        names, number = list(self.modes), self.options.chain or 0
        while True:
            name = names[number % len(names)]
            if not self.digests[name]:
                self.chain(number % len(names), name, False)
            if self.digests[name] and (self.modes[name].disturbed or number >= len(names)):
                self.chain(number, name, self.modes[name].disturbed)
            number += 1
            if number == chains or self.options.chain is not None or not chains and time.monotonic() > self.begin + 60 * self.options.minutes:
                return

    def table(self):
        columns = ["chains", "parts", "resumes", "restarts", *KINDS, "during a save", "hashes", "peak, MiB", "growth, MiB"]
        rows = []
        for name, total in self.totals.items():
            values = {**total, "hashes": len(self.digests[name]), "peak, MiB": total["peak"],
                      "growth, MiB": "" if self.modes[name].disturbed else total.get("growth", "not measured")}
            rows.append([name, *(values.get(column, 0) for column in columns)])
        every = ["all", *(sum(row[i] for row in rows if row[i] != "") for i in range(1, len(columns) - 1))]
        every += [max((row[i] for row in rows if not isinstance(row[i], str)), default="not measured") for i in (len(columns) - 1, len(columns))]
        lines = [["mode", *columns], ["---"] * (len(columns) + 1), *rows, every]
        return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines)

    def record(self, ended):
        commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=SOURCE, stdout=subprocess.PIPE, text=True).stdout.strip()
        processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        minutes = (time.monotonic() - self.begin) / 60
        faults = "\n".join(f"- {fault}" for fault in self.faults) or "No fault."
        return f"""## {datetime.datetime.now():%Y-%m-%d}, {minutes:.0f} minutes

`./dev soak {' '.join(sys.argv[1:])}`, seed {self.options.seed}, commit {commit or 'unknown'}, {processor.group(1) if processor else platform.machine()},
{len(os.sched_getaffinity(0))} cores; {self.disk.how}; clock jumps: {'yes' if self.clock else 'no'}; {ended}.

{self.table()}

{faults}
"""


def options_of(words):
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("minutes", type=float, metavar="MINUTES", help="start new chains for MINUTES minutes; a chain is one run with its resumes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6), metavar="S", help="of all choices [random]")
    parser.add_argument("--chain", type=int, metavar="N", help="only this chain, after an undisturbed one")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="append the results to this Markdown file")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, metavar="FILE", help="dp_train; with it ./dev soak builds nothing")
    return parser.parse_args(words)


def main(words):
    options = options_of(words)
    os.chdir(os.environ.get("DP_STARTED_IN", "."))
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    lock = FOLDER.with_suffix(".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"dev: error: another soak uses {FOLDER}", file=sys.stderr)
        return 2
    soak, ended, status = Soak(options), "complete", 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        soak.run()
    except KeyboardInterrupt:
        ended, status = "interrupted", 130
    finally:
        soak.disk.close()
    text = soak.record(ended)
    print(text)
    if options.record:
        with options.record.open("a") as file:
            file.write("\n" + text)
    return status or (1 if soak.faults else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
