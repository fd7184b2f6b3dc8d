"""./dev gpu-check: builds on a machine with a GPU, runs everything there and writes a report. docs/gpu_check.md."""
import argparse
import datetime
import os
import pathlib
import platform
import subprocess
import sys
import time

import checks
import gpus
import report
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
    return with_nccl(environment)


def with_nccl(environment):
    """Names the NCCL of this Python's packages, unless another is named; the loader does not look there."""
    if "DP_NCCL_LIBRARY" not in environment:
        libraries = [pathlib.Path(folder, "nvidia/nccl/lib/libnccl.so.2") for folder in sys.path]
        found = [str(library) for library in libraries if library.is_file()]
        if found:
            environment["DP_NCCL_LIBRARY"] = found[0]
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

    if checks.build(parts, ROOT, build, found):
        facts["environment"] = checks.environment(parts, build)
        checks.gpu_tests(parts, build)
        checks.op_bits(parts, build)
        checks.replicas(parts, build)
        for amp in (None, "bfloat16", "float16"):
            checks.digits(parts, build, amp)
        checks.graphs(parts, build)
        checks.sanitizers(parts, build)
        checks.all_tests(parts, build)

    facts["seconds"] = round(time.monotonic() - begin)
    facts["passed"] = all(part.result == "passed" for part in parts.done)
    report.write(out, facts, parts.done)
    print(f"== {out / 'report.md'}: {'everything passed' if facts['passed'] else 'NOT everything passed'}, "
          f"{facts['seconds']} s")
    return 0 if facts["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
