"""./dev gpu-visit A|B: tests and measures prebuilt programs on a GPU host that is available for minutes only. Every
step has its own limit, and its results are written before the next one begins. docs/guide/gpu_visit.md describes it."""
import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import carried
import gpus
import libraries
import steps

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = {"A": 400, "B": 250}  # seconds
LEAST_SECONDS = 5             # a step that has less time left is not begun
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class TimeOut(Exception):
    """A command reached its limit. `output`: what it had printed."""

    def __init__(self, seconds, output):
        super().__init__(f"stopped after {seconds:.0f} s")
        self.output = output


def end_with_parent():
    """The kernel kills the program when the visit is killed, so that it does not keep the GPU busy."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Visit:
    def __init__(self, options, names):
        self.options = options
        self.out = options.out
        self.work = options.work
        self.results = self.work / "results"
        self.logs = self.results / "logs"
        shutil.rmtree(self.results, ignore_errors=True)
        self.logs.mkdir(parents=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + options.limit
        self.programs = None
        self.children = set()
        self.python = options.python
        self.environment = {**libraries.with_libraries(os.environ), "XDG_CACHE_HOME": str(self.work / "cache"), "DP_TESTED_KINDS": "cuda"}
        self.facts = {"part": options.part, "commit": options.commit, "date": now(), "host": f"{platform.platform()}, {os.cpu_count()} cores",
                      "command": " ".join(["./dev gpu-visit", *options.words])}
        self.records = [{"step": name, "result": "not run", "seconds": 0, "detail": "", "commands": []} for name in names]
        self.record = None
        self.save()

    def run(self):
        """Runs all steps. Returns whether all passed."""
        for record in self.records:
            self.record = record
            limit = min(steps.LIMITS[record["step"]], self.left())
            if limit < LEAST_SECONDS:
                record["detail"] = f"{max(0, self.left()):.0f} s were left"
                continue
            record.update(result="interrupted")
            self.save()
            print(f"== {record['step']}, at most {limit:.0f} s", flush=True)
            begin = time.monotonic()
            self.step_deadline = begin + limit
            try:
                record["detail"] = steps.STEPS[record["step"]](self) or ""
                record["result"] = "passed"
            except steps.Skipped as skipped:
                record.update(result="skipped", detail=str(skipped))
            except TimeOut as late:
                record.update(result="timed out", detail=" ".join([str(late), *late.output.strip().splitlines()[-1:]]))
            except Exception as error:  # the next step runs whatever happens in this one
                record.update(result="failed", detail=str(error) if isinstance(error, steps.Failed) else f"{type(error).__name__}: {error}")
            record["seconds"] = round(time.monotonic() - begin, 1)
            self.save()
            print(f"== {record['step']}: {record['result']}, {record['seconds']} s{', ' if record['detail'] else ''}{record['detail']}", flush=True)
            if record["step"] == "host" and record["result"] != "passed":
                break
        self.facts["finished"] = True
        self.save()
        return all(record["result"] == "passed" for record in self.records)

    def left(self):
        return self.deadline - time.monotonic()

    # ---- commands

    def start(self, words, log, **variables):
        """Starts a program with its output in logs/<log>. Input is a text, or None."""
        words = [str(word) for word in words]
        given = {name: str(value) for name, value in variables.items()}
        self.record["commands"].append(" ".join([*(f"{name}={value}" for name, value in given.items()), *words]).replace(f"{ROOT}/", ""))
        with open(self.logs / log, "wb") as file:
            child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, env={**self.environment, **given},
                                     start_new_session=True, preexec_fn=end_with_parent)
        self.children.add(child)
        return child

    def finish(self, child, log, limit):
        """Waits for a program of start(). Returns its exit status and output, or throws TimeOut and ends it."""
        seconds = max(0.1, min(limit, self.step_deadline - time.monotonic()))
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeOut(seconds, (self.logs / log).read_text(errors="replace")) from None
        finally:
            self.end(child)
        return status, (self.logs / log).read_text(errors="replace")

    def end(self, child):
        """Ends the program and its children."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        self.children.discard(child)

    def command(self, words, log, limit=1e9, text="", **variables):
        """Runs a program and returns its exit status and output."""
        child = self.start(words, log, **variables)
        try:
            child.stdin.write(text.encode())
            child.stdin.close()
        except BrokenPipeError:  # it has ended
            pass
        return self.finish(child, log, limit)

    def program(self, name):
        return self.programs / name

    def stop(self, number, _):
        for child in list(self.children):
            self.end(child)
        raise SystemExit(128 + number)

    # ---- results

    def save(self):
        """Writes all results so far. A kill leaves complete files."""
        document = {**self.facts, "finished": self.facts.get("finished", False), "steps": self.records}
        replace(self.out / "visit.json", json.dumps(document, indent=1) + "\n")
        replace(self.out / "visit.md", readable(document))
        packed = self.out / "results.tar.gz.new"
        with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
            archive.add(self.results, "results")
        os.replace(packed, self.out / "results.tar.gz")


def replace(file, text):
    new = file.with_name(file.name + ".new")
    new.write_text(text)
    os.replace(new, file)


def readable(document):
    rows = [f"| {record['step']} | {record['result']} | {record['seconds']} | {record['detail'].replace('|', '/')} |" for record in document["steps"]]
    facts = [f"- {name}: {document[name]}" for name in ("commit", "date", "gpu", "host", "programs", "command") if name in document]
    verdict = "" if document["finished"] else "**Not finished.** "
    lines = [f"# GPU visit, part {document['part']}", "", *facts, "", verdict + "`results.tar.gz` has all figures and logs.", "",
             "| step | result | seconds | |", "|---|---|---|---|", *rows, ""]
    for record in document["steps"]:
        if record["commands"]:
            lines += [f"{record['step']}:", "", "```", *record["commands"], "```", ""]
    return "\n".join(lines)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def commit_here():
    said = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False).stdout.strip()
    return said or "unknown"


def arguments(words):
    parser = argparse.ArgumentParser(prog="./dev gpu-visit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(f"{part}: {', '.join(names)}" for part, names in steps.PARTS.items()))
    parser.add_argument("part", choices=list(PARTS), help="A: correctness, the step, ops, profiles; B: compiled PyTorch, and the step again")
    parser.add_argument("--only", metavar="STEP,..", help=f"these steps instead: {', '.join(steps.STEPS)}")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help=f"of all steps together [{', '.join(f'{p}: {s}' for p, s in PARTS.items())}]")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder of visit.md, visit.json and results.tar.gz [$OUT, or build/visit]")
    parser.add_argument("--binaries", type=pathlib.Path, metavar="FILE", help="programs, packed by ./dev bundle [build/binaries.tar.xz]")
    parser.add_argument("--commit", metavar="HASH", help="the tested commit [git's]")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch [the one that runs this]")
    parser.add_argument("--small", action="store_true", help="small networks and few rounds, for a rehearsal on simulated GPUs")
    options = parser.parse_args(words)
    started_in = pathlib.Path(os.environ.get("DP_STARTED_IN", os.getcwd()))
    options.words = words
    options.work = ROOT / "build" / "visit"
    options.out = started_in / (options.out or os.environ.get("OUT") or options.work)
    options.binaries = started_in / options.binaries if options.binaries else ROOT / "build" / "binaries.tar.xz"
    options.commit = options.commit or commit_here()
    options.limit = options.limit or PARTS[options.part]
    names = options.only.split(",") if options.only else list(steps.PARTS[options.part])
    if unknown := [name for name in names if name not in steps.STEPS]:
        parser.error(f"--only: there is no step {unknown[0]}; the steps are {', '.join(steps.STEPS)}")
    return options, ["host", *(name for name in names if name != "host")]


def main(words=None):
    options, names = arguments(sys.argv[1:] if words is None else words)
    if isinstance(found := gpus.probe(), str):
        print(f"gpu-visit: {found}", file=sys.stderr)
        return 4
    visit = Visit(options, names)
    visit.facts["gpu"] = ", ".join(gpu.name for gpu in found)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, visit.stop)
    visit.programs, manifest, why = carried.unpacked(options.binaries, options.work / "programs", found, gpus.driver_version())
    if why:
        print(f"gpu-visit: {why}; ./dev bundle makes {options.binaries}", file=sys.stderr)
        return 1
    visit.facts["programs"] = f"commit {manifest['commit']}, for sm_{', sm_'.join(manifest['architectures'])}"
    visit.environment["DP_PLUGIN_PATH"] = str(visit.program("apps/dp_train"))
    passed = visit.run()
    print((visit.out / "visit.md").read_text())
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
