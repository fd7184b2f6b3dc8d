"""Parts of the check: commands with a time limit, whose results are kept whatever they are."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time


def say(line):
    sys.stdout.write(line + "\n")  # in one piece: parts may run side by side
    sys.stdout.flush()


class Part:
    def __init__(self, name):
        self.name = name
        self.result = "failed"  # passed, failed, timed out, not run
        self.detail = ""        # one line
        self.seconds = 0.0
        self.commands = []
        self.output_tail = ""   # of the last command; kept for the report when the part did not pass


class Parts:
    def __init__(self, logs, environment, deadline):
        self.logs = pathlib.Path(logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.environment = environment
        self.deadline = deadline  # on time.monotonic(), of all parts
        self.done = []
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
        except Exception as error:  # a part must not stop the others
            part.result, part.detail = "failed", f"{type(error).__name__}: {error}"
        part.seconds = round(time.monotonic() - begin, 1)
        say(f"== {name}: {part.result}{', ' if part.detail else ''}{part.detail}, {part.seconds} s")
        return part.result == "passed"

    def command(self, part, words, limit, folder=None, **variables):
        """Runs a program to its end and returns (exit status, output); its output is in logs too."""
        words = [str(word) for word in words]
        limit = min(limit, self.deadline - time.monotonic())
        part.commands.append(" ".join([f"{name}={value}" for name, value in variables.items()] + words))
        if limit < 1:
            raise subprocess.TimeoutExpired(words, max(limit, 0))
        log = self.logs / (re.sub(r"[^a-z0-9]+", "-", part.name.lower()).strip("-") + f"-{len(part.commands)}.log")
        environment = {**self.environment, **{name: str(value) for name, value in variables.items()}}
        with open(log, "wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       cwd=folder, env=environment, start_new_session=True)
            try:
                process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            finally:
                output = log.read_text(errors="replace")
                part.output_tail = output[-3000:]
        return process.returncode, output

    def verdict(self, part, passed, detail):
        part.result, part.detail = "passed" if passed else "failed", detail
