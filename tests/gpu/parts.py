"""Parts of the check: commands with a time limit, whose results are kept whatever they are."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

# Lines of a compiler, a linker, a loader or an assertion; a log of thousands of lines may have them anywhere.
TELLING = re.compile(r"\berror\b|^FAILED:|undefined reference|cannot open shared object|terminate called|\*\*\*(Failed|Timeout|Exception)",
                     re.IGNORECASE)
MOST_TELLING = 40


def say(line):
    sys.stdout.write(line + "\n")  # in one piece: parts may run side by side
    sys.stdout.flush()


class NoTimeLeft(Exception):
    pass


class Part:
    def __init__(self, name):
        self.name = name
        self.result = "running"  # in the end: passed, failed, timed out, not run
        self.detail = ""         # one line
        self.seconds = 0.0
        self.commands = []
        self.output_tail = ""    # of the last command; kept for the report when the part did not pass
        self.telling = []        # its first lines that name an error


class Parts:
    def __init__(self, logs, environment, deadline):
        self.logs = pathlib.Path(logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.environment = environment
        self.deadline = deadline  # on time.monotonic(), of all parts
        self.done = []            # in the order of their beginnings
        self.after_each = lambda: None
        self.lock = threading.Lock()

    def run(self, name, check):
        """check(part) sets result and detail; what it throws fails the part. Returns whether it passed."""
        part = Part(name)
        with self.lock:
            self.done.append(part)
        begin = time.monotonic()
        say(f"== {name}")
        try:
            check(part)
        except subprocess.TimeoutExpired as expired:
            part.result, part.detail = "timed out", f"stopped after {expired.timeout:.0f} s"
        except NoTimeLeft:
            part.result, part.detail = "not run", "no time was left" if len(part.commands) == 1 else "no time was left for all of it"
        except Exception as error:  # a part must not stop the others
            part.result, part.detail = "failed", f"{type(error).__name__}: {error}"
        if part.result == "running":
            part.result, part.detail = "failed", "it came to no verdict"
        part.seconds = round(time.monotonic() - begin, 1)
        say(f"== {name}: {part.result}{', ' if part.detail else ''}{part.detail}, {part.seconds} s")
        with self.lock:
            try:
                self.after_each()
            except OSError as error:
                say(f"== the report: {error}")
        return part.result == "passed"

    @staticmethod
    def side_by_side(*runs):
        """Calls each in a thread of its own, and ends when all have."""
        threads = [threading.Thread(target=run) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def command(self, part, words, limit, folder=None, **variables):
        """Runs a program to its end and returns (exit status, output); its output is in logs too. A TimeoutExpired has what there is."""
        words = [str(word) for word in words]
        limit = min(limit, self.deadline - time.monotonic())
        part.commands.append(" ".join([f"{name}={value}" for name, value in variables.items()] + words))
        if limit < 1:
            raise NoTimeLeft
        log = self.logs / (re.sub(r"[^a-z0-9]+", "-", part.name.lower()).strip("-") + f"-{len(part.commands)}.log")
        environment = {**self.environment, **{name: str(value) for name, value in variables.items()}}
        with open(log, "wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       cwd=folder, env=environment, start_new_session=True)
            try:
                process.wait(timeout=limit)
            except subprocess.TimeoutExpired as expired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                expired.output = log.read_text(errors="replace")
                raise
            finally:
                output = log.read_text(errors="replace")
                part.output_tail = output[-6000:]
                part.telling = [line[:300] for line in output.splitlines() if TELLING.search(line)][:MOST_TELLING]
        return process.returncode, output

    def verdict(self, part, passed, detail):
        part.result, part.detail = "passed" if passed else "failed", detail
