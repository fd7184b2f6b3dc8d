"""The part that runs CTest: all built tests except those on the GPU, which cases.py runs."""
import os
import re
import subprocess
import xml.etree.ElementTree

CORES = os.cpu_count() or 2
LIBRARIES = "^real_libraries: "


def outcomes(log):
    """Parses the output of a stopped ctest: names of passed, failed, skipped and unfinished tests."""
    names = dict(re.findall(r"^ *Start +(\d+): (.*)$", log, re.MULTILINE))
    passed, failed, skipped = [], [], []
    ended = re.findall(r"^ *\d+/\d+ Test +#(\d+): .*?(?:   (Passed)|\*\*\*(\w+).*?) +[\d.]+ sec *$", log, re.MULTILINE)
    for number, good, bad in ended:
        (passed if good else skipped if bad == "Skipped" else failed).append(names.pop(number, f"#{number}"))
    return passed, failed, skipped, list(names.values())


def all_tests(parts, build, limit=200):
    def check(part):
        results = parts.logs / "all-other-tests.xml"
        results.unlink(missing_ok=True)
        try:
            status, _ = parts.command(part, ["ctest", "--test-dir", build, "--no-tests=error", "--output-on-failure", "-j", max(2, CORES // 2),
                                             "--output-junit", results, "-LE", "^(slow|simt-slow|gpu|embed)$", "-E", LIBRARIES], limit)
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
        parts.verdict(part, status == 0 and not failed, detail)

    parts.run("all other tests", check, needs=60)
