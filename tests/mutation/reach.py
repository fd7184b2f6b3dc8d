"""Maps tests to the lines that they reach. The sources of the mutants are compiled a second time with instrumented
basic blocks (reached.cpp). Every test runs once with them, in its own process. The line table has the lines of each
block."""
import bisect
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shutil
import subprocess

from mutants import NOT_MUTATED, digest
from sandbox import HERE, Failed

# Exact lines need unoptimised code. The loops of SLOW_LOOPS would then take minutes, so that code is compiled with -O1.
FLAGS = "-g1 -w -fsanitize-coverage=trace-pc -fno-optimize-sibling-calls -fno-inline"
SLOW_LOOPS = ("kernels/", "data/")
NEAR = 5  # lines; in optimised code the line table assigns some instructions to neighbouring lines
NOT_REPORTING = ("tests/", "benchmarks/")
LIMIT = 600  # seconds of one test


def file_hash(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


class Reach:
    """tests: {name: {hash, seconds, outcome}}. lines: {path: {line: set of tests as bits}}. sources: the instrumented
    ones."""

    def __init__(self, sandbox, runner):
        self.sandbox, self.runner = sandbox, runner
        self.file = sandbox.home / "reached.json"
        self.objects = sandbox.home / "reporting"
        self.product, self.sources, self.names, self.tests, self.lines = None, set(), [], {}, {}
        if self.file.exists():
            known = json.loads(self.file.read_text())
            self.product, self.sources, self.names, self.tests = known["product"], set(known.get("sources", ())), known["names"], known["tests"]
            self.lines = {path: {int(line): int(bits, 16) for line, bits in lines.items()} for path, lines in known["lines"].items()}

    def save(self):
        known = {"product": self.product, "sources": sorted(self.sources), "names": self.names, "tests": self.tests,
                 "lines": {path: {line: format(bits, "x") for line, bits in lines.items()} for path, lines in self.lines.items()}}
        write_whole(self.file, json.dumps(known))

    # --- queries ---

    def of_line(self, path, line, first, last):
        """Names of the tests that reach `line` of the statement in lines first to last. If the line has no code: those
        of the statement. If the statement has none, e.g. a constant: those of the file. In optimised code also those
        of the NEAR lines around it. If no test reaches the line: those of the ten lines before, because the line table
        assigns some calls to other lines. None: the file is unknown."""
        lines = self.lines.get(path)
        if lines is None:
            return None
        found = [lines[line]] if line in lines else [lines[other] for other in range(first, last + 1) if other in lines] or lines.values()
        if path.startswith(SLOW_LOOPS):
            found = [*found, *(lines.get(near, 0) for near in range(max(1, first - NEAR), last + NEAR + 1))]
        if not any(found):
            found = [lines.get(before, 0) for before in range(max(1, line - 10), line)]
        return {name for i, name in enumerate(self.names) if any(bits >> i & 1 for bits in found)}

    # --- the run on the unchanged tree ---

    def update(self, cases, sources, say):
        """Instruments these sources and runs the tests: all if the product has changed or a source is a new one, else
        those whose program has changed."""
        sandbox = self.sandbox
        product = digest(*sorted(file_hash(sandbox.build / output) for output, _ in sandbox.links if self.is_product(output)))
        if product != self.product or not sources <= self.sources:
            self.product, self.sources, self.names, self.tests, self.lines = product, set(sources), [], {}, {}
        hashes = {}
        for case in cases:
            program = case.command[0]
            hashes[case.name] = hashes.get(case.name) or str(digest(*case.command, file_hash(program) if pathlib.Path(program).is_file() else ""))
        todo = [case for case in cases if self.tests.get(case.name, {}).get("hash") != hashes[case.name]]
        if todo:
            say(f"finding the lines that {len(todo)} of {len(cases)} tests reach")
            outputs = self.report_blocks(say)
            try:
                blocks = {output: self.blocks_of(sandbox.build / output) for output in outputs}
                self.run(todo, hashes, blocks, say)
            finally:
                sandbox.restore("build")
            self.save()
        for case in cases:
            case.seconds = self.tests[case.name]["seconds"]

    def is_product(self, output):
        return not pathlib.PurePosixPath(output).parts[0] == "tests"

    def report_blocks(self, say):
        """Compiles and links instrumented product code. Returns the instrumented programs and libraries."""
        sandbox, wanted, objects = self.sandbox, [], {}
        for path in sorted(self.sources):
            if path.startswith(NOT_REPORTING) or NOT_MUTATED.match(path):
                continue
            for _, output in sandbox.compiles[path]:
                new, old = self.objects / output, sandbox.build / output
                objects[output] = new
                if (not new.exists() or new.stat().st_mtime < old.stat().st_mtime) and path not in wanted:
                    wanted.append(path)
        say(f"compiling {len(wanted)} instrumented sources")
        with concurrent.futures.ThreadPoolExecutor(sandbox.jobs) as pool:
            level = {path: "-O1 " if path.startswith(SLOW_LOOPS) else "-O0 " for path in wanted}
            if None in pool.map(lambda path: sandbox.compile(path, self.objects, level[path] + FLAGS), wanted):
                raise Failed("product code does not compile with -fsanitize-coverage=trace-pc")
        runtime = self.objects / "reached.o"
        sandbox.command(["c++", "-O2", "-std=c++20", "-fPIC", "-c", str(HERE / "reached.cpp"), "-o", str(runtime)], "reached.cpp does not compile")
        outputs = sandbox.link(objects, str(runtime))
        if outputs is None:
            raise Failed("instrumented product code does not link")
        return [output for output in outputs if not output.endswith(".a")]

    def blocks_of(self, module):
        """[(mark of a block, {(path, line)})] of a program or library. A mark is the address after the block's call."""
        calls = subprocess.run(f"objdump -d --no-show-raw-insn {module} | grep -E -A1 '<__sanitizer_cov_trace_pc>$|>:$'", shell=True,
                               stdout=subprocess.PIPE, text=True).stdout  # empty without instrumented objects
        marks, functions, after_call = [], [], False
        for line in calls.splitlines():
            if line.endswith(">:"):
                functions.append(int(line.split()[0], 16))
            elif "<__sanitizer_cov_trace_pc>" in line and "call" in line or "\tbl\t" in line:
                after_call = True
            elif after_call and re.match(r"\s*[0-9a-f]+:", line):
                marks.append(int(line.split(":")[0], 16))
                after_call = False
        table = subprocess.run(["objdump", "-WL", "-w", str(module)], stdout=subprocess.PIPE, text=True, check=True).stdout
        rows = sorted({int(at, 16) for at in re.findall(r"^\S.* (?:\d+|-) +(0x[0-9a-f]+)", table, re.MULTILINE)})
        marks.sort()
        # A block begins at the row of its mark's call, the first block of a function at the function.
        # It ends at the next block.
        begins = []
        for i, mark in enumerate(marks):
            function = functions[max(bisect.bisect_right(functions, mark) - 1, 0)] if functions else 0
            first = function if i == 0 or marks[i - 1] < function else mark - 1
            begins.append(max(bisect.bisect_right(rows, first) - 1, 0))
        known = self.lines_at(module, rows)
        blocks = []
        for i, mark in enumerate(marks):
            end = begins[i + 1] if i + 1 < len(begins) else len(rows)
            blocks.append((mark, {known[row] for row in range(begins[i], max(end, begins[i] + 1)) if row < len(known) and known[row]}))
        return blocks

    def lines_at(self, module, addresses):
        answer = subprocess.run(["addr2line", "-e", str(module)], input="\n".join(map(hex, addresses)), stdout=subprocess.PIPE, text=True,
                                check=True).stdout
        found, prefix = [], str(self.sandbox.tree) + "/"
        for place in answer.splitlines():
            path, _, line = place.partition(" ")[0].rpartition(":")
            found.append((path[len(prefix):], int(line)) if path.startswith(prefix) and line.isdigit() else None)
        return found

    def run(self, cases, hashes, blocks, say):
        for name in [case.name for case in cases if case.name not in self.names]:
            self.names.append(name)
        number = {name: i for i, name in enumerate(self.names)}
        for module in blocks.values():
            for _, places in module:
                for path, line in places:
                    self.lines.setdefault(path, {}).setdefault(line, 0)
        redone = sum(1 << number[case.name] for case in cases)
        for lines in self.lines.values():
            for line in lines:
                lines[line] &= ~redone

        def work(case):
            folder = self.sandbox.home / "marks" / str(number[case.name])
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for output in blocks:
                with open(folder / pathlib.PurePosixPath(output).name, "wb") as file:
                    file.truncate((self.sandbox.build / output).stat().st_size + (1 << 20))
            result = self.runner.run([case], LIMIT, {"DP_REACHED": str(folder)})
            reached = set()
            for output, module in blocks.items():
                marks = (folder / pathlib.PurePosixPath(output).name).read_bytes()
                if marks.count(1):
                    for mark, places in module:
                        if marks[mark]:
                            reached |= places
            shutil.rmtree(folder)
            return case, result, reached

        done = 0
        with concurrent.futures.ThreadPoolExecutor(self.sandbox.jobs) as pool:
            for case, result, reached in pool.map(work, cases):
                bit = 1 << number[case.name]
                for path, line in reached:
                    self.lines[path][line] |= bit
                self.tests[case.name] = {"hash": hashes[case.name], "seconds": round(result.seconds, 3), "outcome": result.outcome}
                done += 1
                if done % 50 == 0:
                    self.save()
                    say(f"{done} of {len(cases)}")


def write_whole(path, text):
    """Writes a file atomically: a kill leaves the old or the new content."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)
