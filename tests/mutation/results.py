"""The outcomes of the mutants, saved as JSON after each one, and the report."""
import json

from reach import write_whole

KILLED, SURVIVED, NOT_COMPILED, SAME_CODE, LISTED, NOT_RUN = "killed", "survived", "not compiled", "same code", "equivalent", "not run"
OUTCOMES = (KILLED, SURVIVED, NOT_COMPILED, SAME_CODE, LISTED, NOT_RUN)
SEPARATOR = " ::: "


def equivalents(text):
    """{(path, line, line of the mutant): why no test can notice it}, from a list with one entry per line; # begins a
    comment."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(SEPARATOR.strip())]
        if len(parts) != 4 or not parts[3]:
            raise ValueError(f"line {number} is not 'path{SEPARATOR}line{SEPARATOR}line of the mutant{SEPARATOR}why'")
        found[tuple(parts[:3])] = parts[3]
    return found


class Results:
    def __init__(self, file, call):
        """`call`: the parameters of the sample. Records of other parameters are not loaded."""
        self.file, self.call, self.records, self.seconds = file, call, [], {}

    def load(self):
        """Loads the records of an earlier call with the same sample."""
        if self.file.exists():
            known = json.loads(self.file.read_text())
            if known["call"] == self.call:
                self.records, self.seconds = known["mutants"], known["seconds"]

    def save(self):
        write_whole(self.file, json.dumps({"call": self.call, "seconds": self.seconds, "mutants": self.records}, indent=1))

    def of(self, mutant):
        wanted = mutant.key() + (mutant.nth,)  # without the line number, which edits of other lines change
        return next((record for record in self.records if tuple(record[key] for key in ("path", "before", "after", "nth")) == wanted), None)

    def add(self, mutant, outcome, seconds, why="", tests=0, tier=""):
        record = {"path": mutant.path, "line": mutant.line, "nth": mutant.nth, "rule": mutant.rule, "before": mutant.before, "after": mutant.after,
                  "outcome": outcome, "why": why, "tests": tests, "tier": tier, "seconds": round(seconds, 1)}
        earlier = self.of(mutant)
        self.records = [old for old in self.records if old is not earlier] + [record]
        self.save()
        return record

    def count(self, outcome, folder=""):
        return sum(record["outcome"] == outcome and record["path"].startswith(folder) for record in self.records)

    def share(self, folder=""):
        """Percentage of killed mutants among those killed or survived. None if there are none."""
        killed, survived = self.count(KILLED, folder), self.count(SURVIVED, folder)
        return 100 * killed / (killed + survived) if killed + survived else None

    def report(self, folders):
        rows = [("folder",) + OUTCOMES + ("killed %", "seconds")]
        for folder in [folder + "/" for folder in folders] + [""]:
            inside = [record for record in self.records if record["path"].startswith(folder)]
            share = self.share(folder)
            rows.append((folder.rstrip("/") or "all",) + tuple(str(self.count(outcome, folder)) for outcome in OUTCOMES) +
                        ("-" if share is None else f"{share:.1f}", f"{sum(record['seconds'] for record in inside):.0f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]
        survivors = [record for record in self.records if record["outcome"] == SURVIVED]
        if survivors:
            lines += ["", "survived (a test, or a line in tests/mutation/equivalent.txt with the reason added):"]
        for record in sorted(survivors, key=lambda record: (record["path"], record["line"])):
            lines += [f"{record['path']}:{record['line']}: {record['rule']}; {record['why']}",
                      f"  {SEPARATOR.join((record['path'], record['before'], record['after']))}{SEPARATOR}"]
        fast = sum(record["outcome"] == KILLED and record.get("tier") == "fast" for record in self.records)
        lines += ["", f"killed by the tier fast: {fast} of {self.count(KILLED)}"]
        parts = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in self.seconds.items())
        return "\n".join(lines + ["", f"time: {parts}"])
