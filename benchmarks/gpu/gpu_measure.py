"""Measures one case of gpu.py. Programs have a time limit. A failure is a result with a reason."""

import ctypes
import json
import pathlib
import signal
import subprocess
import tempfile
import time

from gpu_record import one_line
from gpu_tables import has_figures, rows_of

NO_MEMORY = ("out of memory", "outofmemory", "alloc_failed")  # messages of dp, PyTorch and the libraries
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent():
    """The kernel kills the program when this process ends, so that none stays on the GPU. dp_bench does the same for
    its children."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Programs:
    def __init__(self, environment):
        self.environment = environment

    def run(self, command, seconds, **variables):
        """Runs a command. Returns "", or the reason of its failure with its last line of stderr."""
        with tempfile.TemporaryFile() as words:
            process = None
            try:
                # subprocess.run would wait for the program's end if a signal arrived just before its wait.
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
                                           env={**self.environment, **variables}, preexec_fn=end_with_parent)
                status = process.wait(seconds)
                if status == 0:
                    return ""
                how = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
            except subprocess.TimeoutExpired:
                how = f"not finished after {seconds:.0f} s"
            except OSError as error:
                return one_line(error)
            finally:
                if process is not None:
                    process.kill()
                    process.wait()
            words.seek(0)
            last = words.read().decode(errors="replace").strip().splitlines()[-1:]
            return f"{how}: {one_line(last[0])}" if last else how

    def report(self, command, seconds):
        """(report of a dp_bench command or None, reason of missing figures or "")"""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "report.json")
            why = self.run([*command, "--json", str(path)], seconds)
            if why:
                return None, why
            try:
                report = json.loads(path.read_text())
                return report, "" if has_figures(report) else reason_of(report)
            except (OSError, ValueError, KeyError, TypeError) as error:
                return None, f"its report cannot be read: {one_line(error)}"

    def candidates(self, command, seconds):
        """(report of the candidates that `command` tries or None, reason of a failure). Starts with an empty tuning
        cache. After a failure the report has the candidates tried so far."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            why = self.run(command, seconds, DP_TUNING_LOG=str(log), XDG_CACHE_HOME=folder)
            report = candidates_report(log.read_text(errors="replace")) if log.is_file() else None
            return (report, why) if has_figures(report) else (None, why or "no candidate was timed")


def reason_of(report):
    return next((row["note"] for section in report["sections"] for row in section["rows"] if row.get("note")), "it measured nothing")


def without_memory(report):
    return [row["key"] for row in rows_of(report, "variants") if row["kind"] != "measured" and any(words in row.get("note", "").lower() for words in NO_MEMORY)]


def measured(programs, result, command, seconds):
    """{report, why, more} of one case. All variants of a step allocate memory at the same time. Variants that run out
    of memory are measured again, each with only `dp1`: both sides of a ratio must be from one run."""
    if result["section"] == "ways":
        report, why = programs.candidates(command, seconds)
        return {"report": report, "why": why, "more": {}}
    end = time.monotonic() + seconds
    report, why = programs.report(in_time(command, seconds), seconds)
    more = {}
    asked = set(command[-1].split(","))
    for key in sorted(without_memory(report), key=lambda key: key != "dp1") if report else []:
        few = [key] if key == "dp1" else ["dp1", key]
        left = end - time.monotonic()
        if set(few) == asked or "dp1" not in asked or left < 1:
            continue
        again, _ = programs.report(in_time([*command[:-1], ",".join(few)], left), left)
        if has_figures(again):
            more[key] = again
    if report is not None and more:
        why = ""
    return {"report": report, "why": why, "more": more}


def in_time(command, seconds):
    """Lowers --timeout to fit the remaining time, so that a variant that hangs does not cost the other variants."""
    if "--timeout" not in command:
        return command
    at = command.index("--timeout") + 1
    return [*command[:at], f"{max(1, min(float(command[at]), answer_seconds(seconds))):.0f}", *command[at + 1:]]


def answer_seconds(seconds):
    """Seconds that one variant may take to answer. The rest is for the other variants. Compiling PyTorch takes
    minutes."""
    return max(seconds / 2, seconds - 90)


# ---- candidates


CANDIDATES = {"own": "own", "own_tensor": "own, tensor cores", "library": "library", "in_turn": "unfused", "own_fused": "own, fused",
        "library_fused": "library, fused"}


def kind_of_candidate(name):
    """The table column of a candidate. The unfused parts of a fused op have a column of their own."""
    if name.startswith("unfused: "):
        return "in_turn"
    fused = name.split(" tf32")[0].split(" widened")[0].endswith(" fused")
    if name.startswith(("cudnn:", "cublaslt:")):
        return "library_fused" if fused else "library"
    return "own_fused" if fused else "own_tensor" if name.startswith("own:mma") else "own"


def candidates_report(log):
    """Converts an autotuning log (DP_TUNING_LOG) to a report: per problem the fastest candidate of each kind, in
    microseconds."""
    best, failed = {}, {}
    for line in log.split("\n")[:-1]:  # drops an incomplete last line of a stopped program
        try:
            problem, candidate, time_text, *note = line.split("\t")
            microseconds = None if time_text == "-" else float(time_text)
        except ValueError:
            continue
        kinds = best.setdefault(problem, {})
        if microseconds is None:
            failed[problem] = failed.get(problem, 0) + (not note or not note[0].startswith("not tried"))
            continue
        kind = kind_of_candidate(candidate)
        if kind not in kinds or microseconds < kinds[kind][0]:
            kinds[kind] = (microseconds, candidate)
    rows = []
    for problem, kinds in best.items():
        chosen = min(kinds.values(), default=(None, "-"))
        rows.append({"kind": "measured", "problem": problem, **{kind: kinds.get(kind, (None,))[0] for kind in CANDIDATES}, "refused": failed.get(problem, 0),
                     "fastest": chosen[1]})
    columns = {"problem": "problem", **{kind: f"{title}, us" for kind, title in CANDIDATES.items()}, "refused": "refused", "fastest": "fastest"}
    return {"facts": {}, "sections": [{"key": "ways", "title": "Candidates for each op", "columns": columns, "rows": rows}]}
