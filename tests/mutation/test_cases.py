"""Runs the tests of the tiers fast and all that CTest lists, without CTest: several cases of a program per process,
several processes at a time."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from sandbox import SIMULATED

TIERS = ("fast", "all")  # of the tests that run; those of the simulated CUDA only if their program is in SIMULATED
PRETENDING = {"dev", "embed", "gpu", "mutation"}  # folders of tests that run no mutated code
CHUNK_SECONDS = 2.0  # expected total of the cases that share a process
SKIPPED = 4


class Case:
    def __init__(self, name, command, folder=None, environment=(), skip_code=SKIPPED, passes_with=None, must_fail=False, tier="fast"):
        self.name, self.command, self.folder = name, command, folder
        self.environment, self.skip_code, self.passes_with, self.must_fail = list(environment), skip_code, passes_with, must_fail
        self.tier, self.seconds = tier, 1.0

    @property
    def program(self):
        """The case's Catch2 program if the case can share a process, else None."""
        if self.environment or self.passes_with or self.must_fail or len(self.command) < 2:
            return None
        own = pathlib.Path(self.command[0]).name.startswith("test_") and not self.command[1].startswith(("[", "-"))
        return self.command[0] if own else None


def listed(build):
    """Every test of a build that runs."""
    answer = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], stdout=subprocess.PIPE, check=True)
    return cases_of(json.loads(answer.stdout))


def cases_of(answer):
    found = []
    for test in answer["tests"]:
        values = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        if not test.get("command"):  # its program is not built
            continue
        tier, _, simulated = next(iter(values.get("LABELS", [])), "fast").partition("-")
        if simulated and pathlib.PurePath(test["command"][0]).name not in SIMULATED:
            continue
        if tier not in TIERS or pathlib.PurePath(values.get("WORKING_DIRECTORY", "")).name in PRETENDING:
            continue
        found.append(Case(test["name"], test["command"], values.get("WORKING_DIRECTORY"), values.get("ENVIRONMENT", ()),
                          values.get("SKIP_RETURN_CODE", SKIPPED), values.get("PASS_REGULAR_EXPRESSION"), bool(values.get("WILL_FAIL")), tier))
    return found


def ordered(cases, concept):
    """The cases of the fast tier, then those of all. Of each, first those whose name has a word of `concept`, then by
    expected time."""
    words = [word for word in re.split(r"[^a-z0-9]+", concept.lower()) if len(word) > 2]
    return sorted(cases, key=lambda case: (TIERS.index(case.tier), not any(word in case.name.lower() for word in words), case.seconds, case.name))


def chunks(cases):
    """Lists of cases of one tier that share a process, in the order of their first cases."""
    found, filling = [], {}
    for case in cases:
        chunk = filling.get((case.program, case.tier))
        if case.program is None or chunk is None or sum(c.seconds for c in chunk) + case.seconds > CHUNK_SECONDS:
            chunk = filling[case.program, case.tier] = []
            found.append(chunk)
        chunk.append(case)
    return found


class Result:
    def __init__(self, outcome, seconds, output=""):
        # outcome: passed, failed, skipped, timed out or stopped
        self.outcome, self.seconds, self.output = outcome, seconds, output

    @property
    def failed(self):
        return self.outcome in ("failed", "timed out")


class Runner:
    def __init__(self, jobs, scratch=None):
        self.jobs = jobs
        self.scratch = scratch or tempfile.mkdtemp(prefix="dp-mutate-")  # a short path, for sockets
        self.stop = threading.Event()

    def clean(self):
        """Kills processes that tests left running, in any process group, and removes their files."""
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"TMPDIR={self.scratch}\0".encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue  # it has ended, or is another user's
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.mkdir(self.scratch)

    def run(self, chunk, limit, environment=None):
        """Runs these cases in one process. Kills it and its process group after `limit` seconds."""
        case = chunk[0]
        command = case.command
        if len(chunk) > 1:
            command = [command[0], ",".join(c.command[1] for c in chunk), "--abort"] + command[2:]
        variables = {**os.environ, "TMPDIR": self.scratch, "XDG_CACHE_HOME": f"{self.scratch}/cache", **(environment or {})}
        variables.update(entry.split("=", 1) for entry in case.environment)
        begin = time.monotonic()
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(command, cwd=case.folder, env=variables, stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=subprocess.STDOUT, start_new_session=True)
            except OSError as error:
                return Result("failed", 0.0, str(error))
            outcome = self.wait(process, begin + limit)
            try:
                os.killpg(process.pid, signal.SIGKILL)  # processes that it left running
            except OSError:
                pass
            process.wait()
            seconds = time.monotonic() - begin
            output.seek(0)
            said = output.read(1 << 20).decode(errors="replace")
        if outcome is None:
            good = process.returncode == 0
            if case.passes_with and process.returncode != case.skip_code:
                good = any(re.search(pattern, said) for pattern in as_list(case.passes_with))
            outcome = "skipped" if process.returncode == case.skip_code else "passed" if good != case.must_fail else "failed"
        return Result(outcome, seconds, said)

    def wait(self, process, deadline):
        pause = 0.002
        while process.poll() is None:
            if self.stop.is_set():
                return "stopped"
            if time.monotonic() > deadline:
                return "timed out"
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return None

    def first_failure(self, chunks_of_cases):
        """Runs chunks until a case fails, and fails again in its own process. Returns (case, second result), or None if
        all pass. A failure that does not repeat is ignored."""
        found, lock, todo = [], threading.Lock(), iter(chunks_of_cases)

        def work():
            while not self.stop.is_set():
                with lock:
                    chunk = next(todo, None)
                if chunk is None:
                    return
                result = self.run(chunk, limit(chunk))
                if result.outcome == "passed":
                    learn_seconds(chunk, result.seconds)
                if not result.failed:
                    continue
                for case in most_likely_first(chunk, result.output):
                    again = self.run([case], limit([case]))
                    if again.failed:
                        found.append((case, again))
                        self.stop.set()
                        return

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for future in [pool.submit(work) for _ in range(self.jobs)]:
                future.result()
        self.stop.clear()
        return found[0] if found else None


def learn_seconds(chunk, seconds):
    """Scales the expected times to the measured one: reach.py measured them with slower, instrumented programs. The
    cases of a chunk keep their proportions."""
    expected = sum(case.seconds for case in chunk)
    for case in chunk:
        case.seconds *= seconds / expected if expected > 0 else 1.0


def limit(chunk):
    return 5 * sum(case.seconds for case in chunk) + 5


def most_likely_first(chunk, output):
    """The cases of a chunk; first those whose names are in its output: Catch2 prints the names of failed cases. CTest's
    names begin with that of the program. Catch2's first line has the names of all cases."""
    said = "".join("".join(line.split()) for line in output.splitlines() if not line.startswith("Filters:"))
    return sorted(chunk, key=lambda case: "".join(case.name.split(":", 1)[-1].split()) not in said)


def as_list(value):
    return value if isinstance(value, list) else [value]
