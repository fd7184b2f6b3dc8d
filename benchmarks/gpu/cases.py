"""Parts that run test programs, each test case in its own process, like CTest. CTest is not needed: a bare host may
lack it."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile
import time

from parts import CutShort

CORES = os.cpu_count() or 2
CASE_SECONDS = 60  # also DP_TEST_TIMEOUT of the build: a test's own limit overrides ctest's --timeout
LIST_SECONDS = 30
SKIPPED = 4        # exit status
NEED_NO_GPU = "real "  # prefix of the names of tests for hosts without a GPU
LIST = (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"])  # Catch2 2, Catch2 3


def names_of(parts, program):
    """(names of its test cases, reason why they are unknown or "")."""
    for words in LIST:
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "list")
            try:
                status = parts.launched([program, *words], log, LIST_SECONDS)
            except subprocess.TimeoutExpired:
                return [], f"stopped after {LIST_SECONDS} s"
            except OSError as error:
                return [], str(error)
            names = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if any("Unrecognised token" in name for name in names):
            continue
        if status not in (0, 1):  # Catch2 2 returns the number of cases; tests/support/main.cpp turns that into 1
            return [], f"exit status {status}: {' '.join(names)[-300:]}"
        return names, "" if names else "no cases"
    return [], "it has no option that lists its cases"


def escaped(name):
    return re.sub(r"([\\,\[\]\"])", r"\\\1", name)


def run(parts, name, programs, limit, jobs, may_skip=lambda case: False, needs=20, **variables):
    """`programs`: {name: file}. Cases are reported as "<program>: <case>"."""
    def check(part):
        results = {}
        joint = parts.logs / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".log")
        joint.write_text("")
        end = min(time.monotonic() + limit, parts.deadline)
        todo, unlisted = [], []
        part.notes = []

        def note_result(title, status, said, output):
            with parts.lock:
                results[title] = status
                part.notes += [line[len("note: "):] for line in output.splitlines() if line.startswith("note: ")]
                with open(joint, "a") as file_of_all:
                    file_of_all.write(f"==== {title}: {said}\n{output}\n")
                if status not in (0, SKIPPED):
                    part.output_tail = (part.output_tail + f"==== {title}: {said}\n{output[-1500:]}\n")[-6000:]

        for program, file in programs.items():
            part.commands.append(f"{file}, each case for itself, {jobs} at once")
            names, why = names_of(parts, file)
            todo += [(f"{program}: {case}", file, case) for case in names]
            if why:
                unlisted.append(f"{program}: the list of its cases")
                note_result(unlisted[-1], 1, why, "")

        def one(title, file, case):
            left = end - time.monotonic()
            if left < 1 or parts.stopped:
                return
            with tempfile.TemporaryDirectory() as folder:
                log = pathlib.Path(folder, "log")
                try:
                    status = parts.launched([file, escaped(case)], log, min(left, CASE_SECONDS), **variables)
                    said = "ended by signal %d" % -status if status < 0 else f"exit status {status}"
                except subprocess.TimeoutExpired:
                    if left < CASE_SECONDS:
                        return
                    status, said = 1, f"stopped after {CASE_SECONDS} s"
                output = log.read_text(errors="replace")
            if "No test cases matched" in output or "No tests ran" in output:
                status, said = 1, "no such case"
            note_result(title, status, said, output)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda work: one(*work), todo))
        titles = unlisted + [title for title, _, _ in todo]
        part.failed_tests = [title for title in titles if results.get(title, 0) not in (0, SKIPPED)]
        part.skipped_tests = [title for title in titles if results.get(title) == SKIPPED]
        part.unfinished_tests = [title for title in titles if title not in results]
        passed = sum(status == 0 for status in results.values())
        detail = f"{passed} passed, {len(part.failed_tests)} failed, {len(part.skipped_tests)} skipped"
        if part.unfinished_tests:
            detail += f", {len(part.unfinished_tests)} had not ended"
            if time.monotonic() >= parts.deadline - 1 and not part.failed_tests:
                raise CutShort
            part.result, part.detail = "timed out", f"stopped after {limit:.0f} s: {detail}"
            return
        parts.verdict(part, passed > 0 and not part.failed_tests and all(map(may_skip, part.skipped_tests)), detail)

    parts.run(name, check, needs)


def tested(build, folder, name):
    return build / "tests" / folder / name


def real_libraries(parts, build):
    run(parts, "libraries and tensor cores", {"real_libraries": tested(build, "cuda", "test_real_libraries")}, 120, 4,
        lambda case: case.startswith("real_libraries: " + NEED_NO_GPU), **plugin(build))


def gpu_tests(parts, build):
    run(parts, "GPU tests", {"gpu": tested(build, "cuda", "test_gpu")}, 120, 2, **plugin(build))


def op_tests(parts, build):
    # DP_TESTED_KINDS=cuda: only on the GPU. The tests fail without one.
    programs = {"ops": tested(build, "kernels", "test_ops"),
                **{name: tested(build, "golden", f"test_{name}") for name in ("golden", "mnist_steps", "resnet18")}}
    run(parts, "ops and golden figures", programs, 90, max(2, CORES // 4), lambda case: "torchvision" in case, DP_TESTED_KINDS="cuda",
        DP_GOLDEN_FOLDER=pathlib.Path(__file__).resolve().parents[2] / "tests/golden", **plugin(build))


def plugin(build):
    return {"DP_PLUGIN_PATH": build / "apps" / "dp_train"}
