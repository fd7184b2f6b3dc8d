"""Parts of a check: commands with time limits. Every result is recorded. Parts that an earlier call settled do not run
again."""
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

# Error lines of compilers, linkers, loaders and assertions. They may be anywhere in a long log.
TELLING = re.compile(r"\berror\b|^FAILED:|undefined reference|cannot open shared object|terminate called|\*\*\*(Failed|Timeout|Exception)",
                     re.IGNORECASE)
MOST_TELLING = 40
SETTLED = ("passed", "failed", "timed out", "skipped")  # results that --continue does not repeat
LISTS = ("failed_tests", "skipped_tests", "unfinished_tests", "notes")
LEAST_SECONDS = 5  # no part starts with less time left
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def say(line):
    sys.stdout.write(line + "\n")  # a single write: parts may run side by side
    sys.stdout.flush()


class CutShort(Exception):
    """The time limit of the whole call was reached, not the part's."""


class Part:
    def __init__(self, name):
        self.name = name
        # "interrupted" while it runs; finally passed, failed, timed out, skipped, not run or interrupted
        self.result = "not run"
        self.detail = "not started"  # one line
        self.seconds = 0.0
        self.commands = []
        self.output_tail = ""    # of the last command; kept for the report when the part did not pass
        self.telling = []        # the first error lines of the last command

    @staticmethod
    def of_record(record):
        part = Part(record["name"])
        for key, value in record.items():
            setattr(part, key, value)
        return part

    def record(self):
        record = {"name": self.name, "result": self.result, "detail": self.detail, "seconds": self.seconds, "commands": list(self.commands)}
        record.update({key: getattr(self, key) for key in LISTS if hasattr(self, key)})
        if self.result != "passed":
            record.update(telling=self.telling, output_tail=self.output_tail)
        return record


def end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Parts:
    def __init__(self, logs, environment, deadline, earlier=()):
        """`earlier`: records of the parts of an earlier call."""
        self.logs = pathlib.Path(logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.environment = environment
        self.deadline = deadline  # of all parts, by time.monotonic()
        self.earlier = {record["name"]: record for record in earlier if record["result"] in SETTLED}
        self.done = []            # in the order of the plan
        self.save = lambda: None
        self.lock = threading.RLock()
        self.planning = False
        self.stopped = False      # the call was terminated
        self.children = set()
        self.sizes = None         # checks.SIZES or DRY_SIZES
        self.patience = 1         # factor for the limits of commands

    def plan(self, run):
        """Registers the parts of run() without running them, so that a report also lists parts that never start."""
        self.planning = True
        run()
        self.planning = False

    def part(self, name):
        found = next((part for part in self.done if part.name == name), None)
        if found is None:
            found = Part.of_record(self.earlier[name]) if name in self.earlier else Part(name)
            self.done.append(found)
        return found

    def run(self, name, check, needs=LEAST_SECONDS, always=False):
        """Runs check(part), which sets result and detail. An exception fails the part. Returns whether the part passed.
        A part starts only with at least `needs` seconds left. A part that an earlier call settled runs again only if
        `always`."""
        with self.lock:
            part = self.part(name)
        if self.planning:
            return True
        if self.stopped:
            return False
        if part.result in SETTLED and not always:
            say(f"== {name}: {part.result} in an earlier call")
            return part.result == "passed"
        begin = time.monotonic()
        left = self.left()
        part.__init__(name)
        if left < needs:
            part.detail = f"{max(0, left):.0f} s were left, {needs} are needed: --continue runs it"
            self.written()
            return False
        part.result, part.detail = "interrupted", "it was running when this was written"
        self.written()
        say(f"== {name}")
        try:
            check(part)
            if part.result == "interrupted":
                part.result, part.detail = "failed", "the check gave no result"
        except subprocess.TimeoutExpired as expired:
            part.result, part.detail = "timed out", f"stopped after {expired.timeout:.0f} s"
        except CutShort:
            part.result, part.detail = "interrupted", "this call ran out of time: --continue repeats it"
        except Exception as error:  # a part must not stop the others
            part.result, part.detail = "failed", f"{type(error).__name__}: {error}"
        finally:
            if self.stopped:
                part.result, part.detail = "interrupted", "the call was stopped"
            part.seconds = round(time.monotonic() - begin, 1)
            self.written()
        say(f"== {name}: {part.result}{', ' if part.detail else ''}{part.detail}, {part.seconds} s")
        return part.result == "passed"

    def left(self):
        return self.deadline - time.monotonic()

    def written(self):
        with self.lock:
            try:
                self.save()
            except OSError as error:
                say(f"== the report: {error}")

    def side_by_side(self, *runs):
        """Runs each function in its own thread and waits for all."""
        if self.planning:
            for run in runs:
                run()
            return
        threads = [threading.Thread(target=run, daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop(self):
        self.stopped = True
        for process in list(self.children):
            try:
                os.killpg(process, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def command(self, part, words, limit, folder=None, **variables):
        """Runs a program and returns (exit status, output). Its output is in logs too. A TimeoutExpired carries the
        output so far. CutShort if the time of the call is over."""
        words = [str(word) for word in words]
        limit *= self.patience
        left = self.left()
        part.commands.append(" ".join([f"{name}={value}" for name, value in variables.items()] + words))
        if left < 1:
            raise CutShort
        log = self.logs / (re.sub(r"[^a-z0-9]+", "-", part.name.lower()).strip("-") + f"-{len(part.commands)}.log")
        try:
            status = self.launched(words, log, min(limit, left), folder, **variables)
        except subprocess.TimeoutExpired as expired:
            if left < limit:
                raise CutShort from None
            expired.output = log.read_text(errors="replace")
            raise
        finally:
            output = log.read_text(errors="replace") if log.exists() else ""
            part.output_tail = output[-6000:]
            part.telling = [line[:300] for line in output.splitlines() if TELLING.search(line)][:MOST_TELLING]
        return status, output

    def launched(self, words, log, limit, folder=None, **variables):
        """Runs a program with its output in the file `log`. Returns its exit status."""
        environment = {**self.environment, **{name: str(value) for name, value in variables.items()}}
        with open(log, "wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder, env=environment,
                                       start_new_session=True, preexec_fn=end_with_parent)
        self.children.add(process.pid)
        try:
            return process.wait(timeout=limit)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.children.discard(process.pid)

    def verdict(self, part, passed, detail):
        part.result, part.detail = "passed" if passed else "failed", detail
