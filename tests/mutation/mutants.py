"""Mutants: single small changes to lines of product code. The seed and a line's own text decide whether and how the
line is changed, so that edits of other lines do not change the sample."""
import hashlib
import re

from source_text import Lines, closing, controlled, masked, statements

# Not mutated: the CUDA backend, because its tests are not built here, and the reference, which is the oracle.
NOT_MUTATED = re.compile(r"kernels/(device/(cuda|reference)|tuning|comm/(p2p|nccl))/|kernels/.*/(cuda|reference)[^/]*$")

# Statements that only report an error. They are removed, but their text is not changed.
REPORTS = re.compile(r"(?:throw\b|(?:\w+::)*(?:fail|refuse|usage|notice|throw_\w+)\s*\()")
LOGS = re.compile(r"std::fprintf\s*\(\s*stderr\b|(?:\w+::)*tell\s*\(")
CALL_OR_ASSIGNMENT = re.compile(r"[*(]*(?:::)?[\w:]+(?:<[^;=]*>)?[)]*(?:(?:\.|->)\w+|\[[^\]]*\]|\([^;]*?\))*\s*"
                                r"(?:(?:[-+*/|&%^]|<<|>>)?=(?!=)|\(|\+\+|--|<<)|\+\+|--")
INTEGER = re.compile(r"(?<![\w.'])(0[xX][0-9a-fA-F']+|\d[\d']*)([uUlLzZ]{0,3})(?![\w.'])")
REAL = re.compile(r"(?<![\w.'])((?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)([fF]?)(?![\w.'])")

OPERATORS = {
    "comparison": {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="]},
    "arithmetic": {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["*"]},
    "logic": {"&&": ["||"], "||": ["&&"]},
    "bits": {"&": ["|"], "|": ["&"], "^": ["|"], "<<": [">>"], ">>": ["<<"]},
    "assignment": {"+=": ["-=", "="], "-=": ["+=", "="], "*=": ["/=", "="], "/=": ["*=", "="], "|=": ["&=", "="], "&=": ["|=", "="]},
}
NAMES = [("std::min", "std::max"), ("std::floor", "std::ceil"), (".front()", ".back()"), (".first", ".second"), ("any_of", "all_of"),
         ("lower_bound", "upper_bound"), ("true", "false"), ("break", "continue")]


def operator_changes(code, begin, end):
    """Yields (begin, end, new text, rule) for every change of a single token."""
    for rule, table in OPERATORS.items():
        for at in re.finditer(r"(?<= )(?:%s)(?=\s)" % "|".join(re.escape(o) for o in sorted(table, key=len, reverse=True)), code[begin:end]):
            if at.group() == "+" and ('"' in code[:begin + at.start()].rstrip()[-1:] + code[begin + at.end():end].lstrip()[:1]):
                continue  # `+` joins strings
            for new in table[at.group()]:
                yield begin + at.start(), begin + at.end(), new, rule
    for at in re.finditer(r"\+\+|--", code[begin:end]):
        yield begin + at.start(), begin + at.end(), {"++": "--", "--": "++"}[at.group()], "step"
    for at in re.finditer(r"!(?=[\w(:*])", code[begin:end]):
        yield begin + at.start(), begin + at.end(), "", "negation"
    for at in re.finditer(r"(?:(?<=[([{])|(?<=[=,?:<>*/+] )|(?<=return ))-(?=[\w(.])", code[begin:end]):
        yield begin + at.start(), begin + at.end(), "", "negation"
    for one, other in NAMES:
        for old, new in ((one, other), (other, one)):
            for at in re.finditer(r"(?<![\w:])%s(?!\w)" % re.escape(old) if old[0] != "." else re.escape(old) + r"(?![\w(])", code[begin:end]):
                yield begin + at.start(), begin + at.end(), new, "name"


def constant_changes(code, begin, end):
    for at in INTEGER.finditer(code, begin, end):
        value = int(at.group(1).replace("'", ""), 0 if at.group(1).lower().startswith("0x") else 8 if re.fullmatch(r"0[0-7]+", at.group(1)) else 10)
        for new in {0: [1], 1: [0, 2]}.get(value, [value + 1, value - 1] if value <= 16 else [value * 2, value // 2]):
            yield at.start(), at.end(), f"{new}{at.group(2)}", "constant"
    for at in REAL.finditer(code, begin, end):
        value, suffix = float(at.group(1)), at.group(2)
        for new in [f"1.0{suffix}"] if value == 0 else [f"0.0{suffix}", f"({at.group()} * 2)"]:
            yield at.start(), at.end(), new, "constant"


def condition_changes(code, begin, end):
    for at in re.finditer(r"\b(if|while)\s*\(", code[begin:end]):
        inner, last = begin + at.end(), closing(code, begin + at.end() - 1)
        if last >= end or re.match(r"[^()]*;|[\w:<>,*& ]+[ &*]\w+ = |\s*(true|false)\s*$", code[inner:last]):
            continue
        yield inner, last, f"!({code[inner:last]})", "condition"
        for new in ["true", "false"] if at.group(1) == "if" else ["false"]:
            yield inner, last, new, "condition"
    for at in re.finditer(r"(?<= )\?(?= )", code[begin:end]):
        yield begin + at.start(), begin + at.end(), "&& false ?", "condition"
        yield begin + at.start(), begin + at.end(), "|| true ?", "condition"


def argument_changes(code, begin, end):
    """Swaps two adjacent arguments that are plain names."""
    for at in re.finditer(r"(?<=[(,])(\s*)([a-z_][\w.]*), ([a-z_][\w.]*)(?=[,)])", code[begin:end]):
        if at.group(2) != at.group(3):
            yield begin + at.start(), begin + at.end(), f"{at.group(1)}{at.group(3)}, {at.group(2)}", "arguments"


def changes(code, statement):
    """Yields every change of a statement. Messages and logs keep their text."""
    first = controlled(code, statement.begin, statement.end) if statement.place == "body" else statement.end
    rest = code[first:statement.end]
    end = first if REPORTS.match(rest) or LOGS.match(rest) else statement.end
    yield from operator_changes(code, statement.begin, end)
    yield from constant_changes(code, statement.begin, end)
    if statement.place == "outside":
        return
    yield from condition_changes(code, statement.begin, end)
    yield from argument_changes(code, statement.begin, end)
    if statement.place == "body" and not LOGS.match(rest):
        if REPORTS.match(rest) or CALL_OR_ASSIGNMENT.match(rest) or re.match(r"(?:break|continue|return)\s*;", rest):
            yield first, statement.end, ";", "removal"
        returned = re.match(r"return\b\s*(?!\{\}|;)", rest)
        if returned:
            yield first + returned.end(), statement.end - 1, " {}" if returned.group() == "return" else "{}", "return"


class Mutant:
    def __init__(self, path, text, lines, statement, begin, end, new, rule):
        self.path, self.begin, self.end, self.rule = path, begin, end, rule
        self.first, self.last = lines.number(statement.begin), lines.number(statement.end - 1)
        self.new = new + "\n" * (text.count("\n", begin, end) - new.count("\n"))  # later lines keep their numbers
        self.line, self.nth = lines.number(begin), 1  # nth: position among the file's lines with the same text
        self.before = lines.line(self.line).strip()
        column = lines.begins[self.line - 1]
        after = lines.line(self.line)
        self.after = (after[:begin - column] + new.split("\n")[0] + (after[end - column:] if end - column <= len(after) else "")).strip()

    def key(self):
        """Its key in the list of equivalent mutants, independent of line numbers."""
        return self.path, self.before, self.after

    def applied(self, text):
        return text[:self.begin] + self.new + text[self.end:]


def mutants_of(path, text):
    code, lines = masked(text), Lines(text)
    for statement in statements(code):
        while code[statement.begin:statement.begin + 1].isspace():
            statement.begin += 1
        for begin, end, new, rule in changes(code, statement):
            # From `text`, because literals are blank in `code`.
            if rule == "condition" and new.startswith("!("):
                new = f"!({text[begin:end]})"
            yield Mutant(path, text, lines, statement, begin, end, new, rule)


def digest(*parts):
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], "big")


def sample(texts, count, seed):
    """Draws `count` mutants from {path: text}, at most one per line. Fewer if there are fewer lines."""
    ranked = []
    for path, text in texts.items():
        by_line, seen = {}, {}
        for mutant in mutants_of(path, text):
            by_line.setdefault(mutant.line, []).append(mutant)
        for line, candidates in sorted(by_line.items()):
            before = candidates[0].before
            seen[before] = seen.get(before, 0) + 1
            for mutant in candidates:
                mutant.nth = seen[before]
            ranked.append((digest(seed, path, before, seen[before]), candidates))
    ranked.sort(key=lambda entry: entry[0])
    drawn = []
    for rank, candidates in ranked[:count]:
        rules = sorted({mutant.rule for mutant in candidates})
        rule = rules[digest(rank, "rule") % len(rules)]
        of_rule = [mutant for mutant in candidates if mutant.rule == rule]
        drawn.append(of_rule[digest(rank, "change") % len(of_rule)])
    return drawn
