"""A measured program as compare.py sees it: commands in, JSON lines out, and who used the processor meanwhile."""

import contextlib
import json
import os
import subprocess

TICK = os.sysconf("SC_CLK_TCK")


class ServerError(Exception):
    pass


class Server:
    """Starts the program and reads its first line into `ready`. Ends it when the with-block ends."""

    def __init__(self, command, environment, name):
        self.name = name
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        try:
            self.ready = self._read()
        except ServerError:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, command):
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ServerError(f"{self.name} has ended") from None
        reply = self._read()
        if "error" in reply:
            raise ServerError(f"{self.name}: {reply['error']}")
        return reply

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise ServerError(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(line)

    def cpu_seconds(self):
        """Processor time of all its threads so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK


def machine_cpu_seconds():
    """Processor time that anything on this machine has used so far; what a hypervisor took counts too."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(n) for n in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK
