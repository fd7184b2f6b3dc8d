"""./dev gpu-all: measures and tests during a short visit to a GPU host, the most informative parts first, in calls of
less than ten minutes. ./dev gpu-check: builds there and runs the tests, without the measurements. See
docs/guide/gpu_check.md."""
import argparse
import datetime
import functools
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
import cases
import checks
import ctests
import gpus
import libraries
import report
import sanitizer
from measures import Measures
from parts import Parts

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOTAL_SECONDS = 570  # GPU hosts end a command after ten minutes
TUNING_SECONDS, DRY_TUNING_SECONDS = 90, 3  # of autotuning per program
CARRIED = ROOT / "build" / "binaries.tar.xz"


def started_in():
    """The folder of relative paths: where the user called ./dev, which changes its working folder."""
    return pathlib.Path(os.environ.get("DP_STARTED_IN", os.getcwd()))


def arguments(argv):
    parser = argparse.ArgumentParser(prog="./dev gpu-all", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="run as ./dev gpu-check: build, tests, no measurements")
    parser.add_argument("--out", metavar="DIR", help="folder of the report, at most eight files [$OUT, or build/gpu]")
    parser.add_argument("--continue", dest="earlier", metavar="DIR", nargs="?", const="", help="continue an earlier call, from its files in DIR [--out]")
    parser.add_argument("--limit", "--seconds", type=float, default=TOTAL_SECONDS, help="seconds of this call [%(default)s]; the rest is for --continue")
    parser.add_argument("--binaries", metavar="FILE", help=f"prebuilt programs, made by ./dev bundle --binaries [{CARRIED.relative_to(ROOT)}]; none: build here")
    parser.add_argument("--bundle", metavar="DIR", help="libraries for the build, made by ./dev bundle")
    parser.add_argument("--commit", metavar="HASH", help="the tested commit, for the report [git's]")
    parser.add_argument("--dry", action="store_true", help="small networks and batches for simulated GPUs, to test this program")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch [the one that runs this]")
    options = parser.parse_args(argv)
    if options.binaries is not None:
        options.binaries = started_in() / options.binaries
        if not options.binaries.is_file():
            parser.error(f"--binaries: there is no file {options.binaries}; ./dev bundle --binaries makes one")
    return options


def environment_of(bundle):
    """The environment after sourcing the bundle's env.sh."""
    environment = dict(os.environ)
    if bundle:
        script = pathlib.Path(bundle).resolve() / "env.sh"
        if not script.is_file():
            sys.exit(f"gpu-all: {script} is missing; ./dev bundle DIR makes it")
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


class Call:
    """One call, with the results of earlier calls."""

    def __init__(self, options, found, begin):
        self.options, self.found, self.begin = options, found, begin
        self.home = ROOT / "build" / "gpu"
        self.out = started_in() / (options.out or os.environ.get("OUT") or self.home)
        self.work = self.home / "scratch"
        self.logs = self.home / "logs"
        self.facts = {"title": "GPU check" if options.check else "GPU host", "commit": commit_of(options.commit), "date": now(),
                      "gpus": [gpu.name for gpu in found], "host": f"{platform.platform()}, {os.cpu_count()} cores", "programs": "none yet",
                      "environment": ""}
        self.before = 0.0
        earlier = []
        for folder in (self.work, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.out.mkdir(parents=True, exist_ok=True)
        bundle = started_in() / options.bundle if options.bundle else None
        if options.earlier is not None:
            earlier = self.restore(started_in() / options.earlier if options.earlier else self.out)
        self.parts = Parts(self.logs, environment_of(bundle), begin + options.limit, earlier)
        self.parts.environment.setdefault("XDG_CACHE_HOME", str(self.work / "cache"))
        self.parts.environment.setdefault("DP_TUNING_SECONDS", str(DRY_TUNING_SECONDS if options.dry else TUNING_SECONDS))
        self.parts.save = self.save
        self.parts.sizes = checks.DRY_SIZES if options.dry else checks.SIZES
        self.parts.patience = 10 if options.dry else 1
        self.build, self.is_built_here = self.home, True

    def restore(self, folder):
        """Returns the part records of an earlier call. Restores its logs, caches and measurements."""
        try:
            record = json.loads((folder / "report.json").read_text())
            parts = record["parts"]
        except (OSError, ValueError, KeyError) as error:
            sys.exit(f"gpu-all: {folder} has no report to continue from ({type(error).__name__}: {error})")
        for key in ("title", "commit", "gpus"):
            if record[key] != self.facts[key]:
                sys.exit(f"gpu-all: {folder} has another {key.rstrip('s')}: {record[key]}, not {self.facts[key]}; start again without --continue")
        self.facts["environment"], self.before = record["environment"], record["seconds"]
        for name, target in (("logs.tar.gz", self.logs.parent), ("kept.tar.gz", self.work)):
            if (folder / name).is_file():
                with tarfile.open(folder / name) as archive:
                    archive.extractall(target)
        for file in sorted(folder.iterdir()):
            if folder.resolve() != self.out.resolve() and file.is_file() and file.name.startswith(("inductor.tar.gz.", "kept.", "measured.")):
                shutil.copy(file, self.out)
        return parts

    def save(self, finished=False):
        results = {part.result for part in self.parts.done}
        self.facts.update(finished=finished, passed=finished and results <= {"passed"},
                          nothing_failed=finished and results <= {"passed", "skipped"}, seconds=round(self.before + time.monotonic() - self.begin))
        report.write(self.out, self.facts, self.parts.done, self.logs)
        packed = self.out / "kept.tar.gz.new"
        with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
            for name in ("cache", "records"):
                if (self.work / name).is_dir():
                    archive.add(self.work / name, name)
        os.replace(packed, self.out / "kept.tar.gz")

    # ---- the programs

    def take_carried(self):
        """Unpacks the prebuilt programs and returns whether they are used."""
        file = self.options.binaries or CARRIED
        if self.options.check and not self.options.binaries or not file.is_file():
            return False

        def check(part):
            programs, manifest, why = carried.unpacked(file, self.home / "carried", self.found, gpus.driver_version())
            if programs:
                self.build, self.is_built_here = programs, False
                # Their run paths contain the build folder, which may exist here with another plugin.
                self.parts.environment["DP_PLUGIN_PATH"] = str(programs / "apps/dp_train")
                self.facts["programs"] = f"prebuilt, of commit {manifest['commit']}, for sm_{', sm_'.join(manifest['architectures'])}"
            self.parts.verdict(part, True, f"used, of commit {manifest['commit']}" if programs else f"not used: {why}")

        self.parts.run("prebuilt programs", check, always=True)
        return not self.is_built_here

    def build_here(self):
        self.facts["programs"] = "built here"
        return checks.configure(self.parts, ROOT, self.home, self.found) and checks.build(self.parts, ROOT, self.home)

    # ---- the plan

    def run_all(self):
        """Runs all parts, the most important first: the time may run out."""
        parts, build = self.parts, self.build
        measures = None
        if not self.options.check:
            measures = Measures(parts, build, self.work, self.out, self.options.python, self.facts["commit"], self.options.dry)
            if self.options.earlier is not None and not parts.planning:
                measures.restore_compiled(self.out)
        checks.environment(parts, build, self.facts)
        checks.headline(parts, build)
        if measures:
            measures.step("steps, bf16, compared with eager PyTorch", "bf16", "torch-cl", 200, 60)
            measures.step("steps, fp16, compared with eager PyTorch", "fp16", "torch-cl", 240, 60)
        cases.real_libraries(parts, build)
        cases.gpu_tests(parts, build)

        def on_the_gpu():
            cases.op_tests(parts, build)
            checks.replicas(parts, build)
            for amp in (None, "bfloat16", "float16"):
                checks.digits(parts, build, amp)
            checks.graphs(parts, build)
            for tools in sanitizer.TOOLS:  # two tools at a time
                parts.side_by_side(*(functools.partial(sanitizer.sanitize, parts, build, tool) for tool in tools))

        def on_the_processors():
            if self.options.check:
                checks.build_the_rest(parts, ROOT, build)
            if self.options.check or (build / "tests/cuda/op_bits_simulated").is_file():
                checks.op_bits(parts, build)
            if self.options.check:
                ctests.all_tests(parts, build)

        # From here on, GPU parts and CPU parts run side by side.
        parts.side_by_side(on_the_gpu, on_the_processors)
        if measures:
            measures.compiled(always=self.options.earlier is not None)

    def run(self):
        if not self.take_carried():
            self.parts.plan(lambda: (self.build_here(), self.run_all()))
            if not self.build_here():
                return
        else:
            self.parts.plan(self.run_all)
        self.parts.environment = libraries.with_libraries(self.parts.environment)  # not for compilers
        self.run_all()


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def stop(*_):
    raise SystemExit(143)


def main(argv=None):
    options = arguments(argv)
    found = gpus.probe()
    if isinstance(found, str):
        print(f"gpu-all: {found}", file=sys.stderr)
        return 4
    call = Call(options, found, time.monotonic())
    for ended in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ended, stop)
    try:
        call.run()
    except SystemExit:
        call.parts.stop()
        call.save()
        raise
    left = [part.name for part in call.parts.done if part.result in ("not run", "interrupted")]
    call.save(finished=not left)
    print(f"== {call.out / 'report.md'}: {report.verdict_of(call.facts)}, {call.facts['seconds']} s")
    if left:
        print(f"== left: {'; '.join(left)}\n== continue with --continue {call.out}")
    return 0 if call.facts["nothing_failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
