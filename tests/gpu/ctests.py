"""Parts that are tests of CTest."""
import os
import re
import subprocess
import xml.etree.ElementTree

CORES = os.cpu_count() or 2
TEST_SECONDS = 60  # of one test; the build is configured with it, for a test's own limit comes before ctest's --timeout
# Programs whose tests use the GPUs that are there without the label `gpu`.
OPS = "^(ops|golden|mnist_steps|resnet18): "
LIBRARIES = "^real_libraries: "
NEED_NO_GPU = "real "  # how names of those begin that are about a host without one


def outcomes(log):
    """What ctest printed before it was stopped: names of tests that passed, failed, were skipped, and had not ended."""
    names = dict(re.findall(r"^ *Start +(\d+): (.*)$", log, re.MULTILINE))
    passed, failed, skipped = [], [], []
    ended = re.findall(r"^ *\d+/\d+ Test +#(\d+): .*?(?:   (Passed)|\*\*\*(\w+).*?) +[\d.]+ sec *$", log, re.MULTILINE)
    for number, good, bad in ended:
        (passed if good else skipped if bad == "Skipped" else failed).append(names.pop(number, f"#{number}"))
    return passed, failed, skipped, list(names.values())


def ctest(parts, name, build, limit, jobs, *selection, may_skip=lambda test: False, **variables):
    def check(part):
        results = parts.logs / (re.sub(r"[^a-z0-9]+", "-", name.lower()) + ".xml")
        results.unlink(missing_ok=True)
        try:
            status, _ = parts.command(part, ["ctest", "--test-dir", build, "--no-tests=error", "--output-on-failure", "-j", jobs,
                                             "--output-junit", results, *selection], limit, **variables)
        except subprocess.TimeoutExpired as expired:
            passed, part.failed_tests, part.skipped_tests, part.unfinished_tests = outcomes(expired.output or "")
            part.result = "timed out"
            part.detail = (f"stopped after {expired.timeout:.0f} s: {len(passed)} passed, {len(part.failed_tests)} failed, "
                           f"{len(part.skipped_tests)} skipped, {len(part.unfinished_tests)} had not ended")
            return
        if not results.exists():
            return parts.verdict(part, False, f"exit status {status}, and no results")
        cases = xml.etree.ElementTree.parse(results).getroot().findall("testcase")
        failed = [case.get("name") for case in cases if case.get("status") not in ("run", "notrun", "disabled")]
        skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
        part.failed_tests, part.skipped_tests = failed, skipped
        detail = f"{len(cases) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped"
        parts.verdict(part, status == 0 and not failed and all(map(may_skip, skipped)), detail)

    parts.run(name, check)


def real_libraries(parts, build):
    ctest(parts, "libraries and tensor cores", build, 120, 4, "-R", LIBRARIES,
          may_skip=lambda test: test.startswith("real_libraries: " + NEED_NO_GPU))


def gpu_tests(parts, build):
    ctest(parts, "GPU tests", build, 120, 2, "-L", "^gpu$")


def op_tests(parts, build):
    # On the GPU alone: without one they fail.
    ctest(parts, "ops and golden figures", build, 90, max(2, CORES // 4), "-R", OPS, may_skip=lambda test: "torchvision" in test,
          DP_TESTED_KINDS="cuda")


def all_tests(parts, build):
    ctest(parts, "all other tests", build, 200, max(2, CORES // 2), "-LE", "^(slow|simt-slow|gpu|embed)$", "-E", LIBRARIES,
          may_skip=lambda test: True)
