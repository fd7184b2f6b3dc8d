"""./dev gpu-check: builds on a machine with a GPU, runs everything there and writes a report. docs/gpu_check.md."""
import argparse
import datetime
import functools
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

import checks
import ctests
import gpus
import libraries
import report
import sanitizer
from parts import Parts

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOTAL_SECONDS = 530


def arguments():
    parser = argparse.ArgumentParser(prog="./dev gpu-check", description=__doc__)
    parser.add_argument("--bundle", metavar="DIR", help="libraries to build with, made by ./dev bundle")
    parser.add_argument("--out", metavar="DIR", help="where the report goes [$OUT, or build/gpu]")
    parser.add_argument("--commit", metavar="HASH", help="what the report says was tested [git's]")
    parser.add_argument("--seconds", type=int, default=TOTAL_SECONDS, help="all parts together [%(default)s]")
    return parser.parse_args()


def environment_of(bundle):
    """The environment, as the bundle's env.sh leaves it."""
    environment = dict(os.environ)
    if bundle:
        script = pathlib.Path(bundle).resolve() / "env.sh"
        if not script.is_file():
            sys.exit(f"gpu-check: {script} is missing; ./dev bundle DIR makes it")
        shown = subprocess.run(["bash", "-c", '. "$1"; env -0', "bash", str(script)], stdout=subprocess.PIPE, check=True)
        environment = dict(entry.split("=", 1) for entry in shown.stdout.decode().split("\0") if "=" in entry)
    return environment


def commit_of(given):
    if given:
        return given
    try:
        def git(*words):
            return subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  check=True).stdout.decode().strip()
        return git("rev-parse", "HEAD") + (", changed" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def run_all(parts, build, out, found, facts):
    """What says most comes first: the time may run out."""
    if not (checks.configure(parts, ROOT, build, found) and checks.build(parts, ROOT, build)):
        return
    parts.environment = libraries.with_libraries(parts.environment)  # not for compilers
    facts["environment"] = checks.environment(parts, build)
    ctests.real_libraries(parts, build)
    ctests.gpu_tests(parts, build)
    checks.headline(parts, build, out / "tuning.tsv")

    # From here on the GPU and most processors have work of their own.
    def on_the_gpu():
        ctests.op_tests(parts, build)
        checks.replicas(parts, build)
        for amp in (None, "bfloat16", "float16"):
            checks.digits(parts, build, amp)
        checks.graphs(parts, build)
        for tools in sanitizer.TOOLS:  # two at once
            parts.side_by_side(*(functools.partial(sanitizer.sanitize, parts, build, tool) for tool in tools))

    def on_the_processors():
        checks.build_the_rest(parts, ROOT, build)
        checks.op_bits(parts, build)
        ctests.all_tests(parts, build)

    parts.side_by_side(on_the_gpu, on_the_processors)


def main():
    options = arguments()
    found = gpus.probe()
    if isinstance(found, str):
        print(f"gpu-check: {found}", file=sys.stderr)
        return 4
    begin = time.monotonic()
    started_in = os.environ.get("DP_STARTED_IN", os.getcwd())
    out = pathlib.Path(started_in, options.out or os.environ.get("OUT") or ROOT / "build" / "gpu")
    build = ROOT / "build" / "gpu"
    shutil.rmtree(build / "logs", ignore_errors=True)
    build.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    bundle = pathlib.Path(started_in, options.bundle) if options.bundle else None
    parts = Parts(build / "logs", environment_of(bundle), begin + options.seconds)
    facts = {
        "commit": commit_of(options.commit),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "gpus": [gpu.name for gpu in found],
        "host": f"{platform.platform()}, {os.cpu_count()} cores",
        "environment": "",
    }

    def write(finished=False):
        facts["finished"] = finished
        facts["passed"] = finished and all(part.result == "passed" for part in parts.done)
        facts["seconds"] = round(time.monotonic() - begin)
        report.write(out, facts, parts.done, parts.logs)

    parts.after_each = write
    run_all(parts, build, out, found, facts)
    write(finished=True)
    print(f"== {out / 'report.md'}: {'everything passed' if facts['passed'] else 'NOT everything passed'}, "
          f"{facts['seconds']} s")
    return 0 if facts["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
