#!/usr/bin/env python3
"""Plants small bugs, one at a time, and reports which ones the tests of ./dev test --all detect
(docs/internals/testing.md)."""
import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

import results
from includes import includers
from mutants import NOT_MUTATED, sample
from reach import Reach
from results import KILLED, LISTED, NOT_COMPILED, NOT_RUN, SAME_CODE, SURVIVED, Results
from sandbox import HERE, Failed, Sandbox
from test_cases import Runner, chunks, listed, ordered

FOLDERS = ["engine", "data", "kernels", "apps", "models"]
EQUIVALENT = HERE / "equivalent.txt"
# Code that runs only on processors with a feature of /proc/cpuinfo. Without it the tests of that code are skipped.
NEEDS = {re.compile(r"kernels/conv/cpu_(amx|flipped)"): "amx_tile"}
MOST_INCLUDERS = 12  # headers with more including sources are not mutated: a mutant compiles them all


def say(line):
    print(f"== {line}", flush=True)


def options(words):
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("paths", nargs="*", help=f"files or folders of product code [{' '.join(FOLDERS)}]")
    parser.add_argument("--sample", type=int, default=50, metavar="N", help="number of mutants, each on another randomly drawn line [50]")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the sample, which also depends on the text of the lines [1]")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="continue an earlier call with the same sample")
    parser.add_argument("--survivors", action="store_true", help="only mutants that survived in the last call with the same sample")
    parser.add_argument("--list", action="store_true", help="print the sample, build nothing")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="number of concurrent test programs or compilations [cores]")
    return parser.parse_args(words)


def product_texts(root, paths):
    """({path: text} of the files that may be mutated, {header: the .cpp files that include it})."""
    listed_files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.cpp", "*.h"], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    texts = {path: (root / path).read_text() for path in listed_files.stdout.splitlines() if (root / path).is_file()}
    wanted = [path.rstrip("/") for path in paths]
    for path in wanted:
        if not any(inside(name, path) for name in texts):
            raise Failed(f"{path}: no source file")
    included = includers(texts)
    return {path: text for path, text in texts.items() if any(inside(path, folder) for folder in wanted)
            and not NOT_MUTATED.match(path) and (path.endswith(".cpp") or 0 < len(included[path]) <= MOST_INCLUDERS)}, included


def lacking(path):
    """The feature that this processor lacks to run the file, or ''."""
    has = pathlib.Path("/proc/cpuinfo").read_text().split()
    return next((feature for pattern, feature in NEEDS.items() if pattern.match(path) and feature not in has), "")


def inside(path, folder):
    return path == folder or path.startswith(folder + "/")


class Mutation:
    def __init__(self, sandbox, reach, runner, included, cases):
        self.sandbox, self.reach, self.runner, self.included, self.cases = sandbox, reach, runner, included, cases
        self.trusted = set()  # names of tests that passed without a mutant
        self.broken = set()   # names of tests that failed without a mutant

    def sources(self, path):
        """The sources to compile when this file changes."""
        found = [path] if path.endswith(".cpp") else sorted(self.included[path])
        return [source for source in found if source in self.sandbox.compiles]

    def compiled(self, mutant, folder):
        """(objects, seconds). objects: {object: its new file}; None if the mutant does not compile; empty if the object
        code is unchanged."""
        begin = time.monotonic()
        sandbox, place = self.sandbox, self.sandbox.tree / mutant.path
        shutil.rmtree(folder, ignore_errors=True)
        text = place.read_text()
        sandbox.set_aside(place)
        place.write_text(mutant.applied(text))
        objects, sources = {}, self.sources(mutant.path)
        try:
            for source in sources:
                new = sandbox.compile(source, folder)
                if new is None:
                    return None, time.monotonic() - begin
                objects.update(new)
        finally:
            sandbox.restore("tree")
        if not sources:
            return None, 0.0
        changed = {old: new for old, new in objects.items() if new.read_bytes() != (sandbox.build / old).read_bytes()}
        return changed, time.monotonic() - begin

    def selected(self, mutant, objects):
        """The test cases that run the mutant's line, those most likely to fail first."""
        names = self.reach.of_line(mutant.path, mutant.line, mutant.first, mutant.last)
        compiled_in = {output for output, command in self.sandbox.links if output.startswith("tests/") and
                       any(word in objects and word.startswith("tests/") for word in command.split(" "))}
        # The code of a header is in the tests' own objects too.
        programs = {str(self.sandbox.build / output) for output in compiled_in}
        cases = [case for case in self.cases if names is None or case.name in names or case.command[0] in programs]
        return ordered([case for case in cases if case.name not in self.broken], pathlib.PurePosixPath(mutant.path).stem)

    def judged(self, mutant, objects):
        """(outcome, why, number of tests, tier of the test that failed)"""
        if lacking(mutant.path):
            return NOT_RUN, f"this processor lacks {lacking(mutant.path)}", 0, ""
        if objects is None:
            return NOT_COMPILED, "the compiler refuses it", 0, ""
        if not objects:
            return SAME_CODE, "the same object code", 0, ""
        while True:
            cases = self.selected(mutant, objects)
            if not cases:
                return SURVIVED, "no test reaches it", 0, ""
            try:
                if self.sandbox.link(objects) is None:
                    return NOT_COMPILED, "the linker refuses it", 0, ""
                failure = self.runner.first_failure(chunks(cases))
            finally:
                self.sandbox.restore("build")
            if failure is None:
                return SURVIVED, f"{len(cases)} tests pass", len(cases), ""
            case, result = failure
            if self.passes_without(case):
                return KILLED, f"{case.name}: {result.outcome}", len(cases), case.tier

    def passes_without(self, case):
        """Whether a test passes on the unchanged tree. A test that fails is excluded from then on."""
        if case.name not in self.trusted:
            result = self.runner.run([case], 5 * case.seconds + 60)
            (self.trusted if not result.failed else self.broken).add(case.name)
            if result.failed:
                say(f"excluded, it fails without a mutant: {case.name}")
        return case.name in self.trusted


def run(root, chosen):
    texts, included = product_texts(root, chosen.paths or FOLDERS)
    drawn = sample(texts, chosen.sample, chosen.seed)
    home = root / "build/mutation"
    call = {"seed": chosen.seed, "sample": chosen.sample, "paths": chosen.paths or FOLDERS}
    kept = Results(home / f"results-{chosen.seed}-{chosen.sample}{''.join('-' + path.replace('/', '_') for path in chosen.paths)}.json", call)
    if chosen.go_on or chosen.survivors:
        kept.load()
    known = results.equivalents(EQUIVALENT.read_text())
    todo = [mutant for mutant in drawn if kept.of(mutant) is None or (chosen.survivors and kept.of(mutant)["outcome"] == SURVIVED)]
    if chosen.list:
        for mutant in todo:
            print(f"{mutant.path}:{mutant.line}: {mutant.rule}\n  - {mutant.before}\n  + {mutant.after}")
        return
    if todo:
        plant(root, chosen, todo, included, known, kept)
    print(kept.report(chosen.paths or FOLDERS))
    say(f"results: {kept.file}")


def plant(root, chosen, todo, included, known, kept):
    begin = time.monotonic()

    def timed(what):
        nonlocal begin
        kept.seconds[what] = round(kept.seconds.get(what, 0) + time.monotonic() - begin, 1)
        begin = time.monotonic()

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pathlib.Path("/proc/self/oom_score_adj").write_text("500")  # the OOM killer picks a mutant first
    sandbox = Sandbox(root, chosen.jobs)
    # Keeps the commit out of the programs: otherwise each commit would be a different product.
    os.environ["GIT_CEILING_DIRECTORIES"] = str(sandbox.home)
    sandbox.home.mkdir(parents=True, exist_ok=True)
    sandbox.refresh()
    timed("build")
    runner = Runner(chosen.jobs)
    try:
        cases = listed(sandbox.build)
        reach = Reach(sandbox, runner)
        mutation = Mutation(sandbox, reach, runner, included, cases)
        reach.update(cases, {source for mutant in todo for source in mutation.sources(mutant.path)}, say)
        timed("reach")
        for case in cases:
            if reach.tests[case.name]["outcome"] not in ("passed", "skipped"):
                mutation.passes_without(case)  # it failed with instrumented code
        # Compiles the next mutant while the tests of the current one run.
        with concurrent.futures.ThreadPoolExecutor(1) as compiler:
            def ahead(i):
                listed_as = i < len(todo) and known.get(todo[i].key())
                return None if i >= len(todo) or listed_as else compiler.submit(mutation.compiled, todo[i], sandbox.home / f"mutant-{i % 2}")
            following = ahead(0)
            for i, mutant in enumerate(todo):
                objects, seconds = following.result() if following else ({}, 0.0)
                following = ahead(i + 1)
                started = time.monotonic()
                if mutant.key() in known:
                    outcome, why, tests, tier = LISTED, known[mutant.key()], 0, ""
                else:
                    outcome, why, tests, tier = mutation.judged(mutant, objects)
                runner.clean()
                record = kept.add(mutant, outcome, seconds + time.monotonic() - started, why, tests, tier)
                timed("mutants")
                say(f"{len(kept.records)} of {chosen.sample}, {outcome}, {record['seconds']} s: {mutant.path}:{mutant.line}: {why}\n"
                    f"     - {mutant.before}\n     + {mutant.after}")
        kept.save()
    finally:
        runner.clean()
        os.rmdir(runner.scratch)


if __name__ == "__main__":
    try:
        run(HERE.parent.parent, options(sys.argv[1:]))
    except (Failed, ValueError) as error:
        sys.exit(f"dev mutate: {error}")
    except KeyboardInterrupt:
        sys.exit("dev mutate: stopped; --continue continues")
