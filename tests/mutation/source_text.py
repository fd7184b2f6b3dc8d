"""Splits C++ source into statements without a compiler."""
import bisect
import re

RAW_STRING = re.compile(r'R"([^()\\\s]{0,16})\(')
CONTROL = re.compile(r"(?:else\b|do\b|try\b|(?:if(?:\s+constexpr)?|for|while|switch|catch)(?=\s*\()|case\b[^;?{}]*?[^:]:(?!:)|default\s*:|\w+:(?!:))\s*")
BODY_BEFORE = re.compile(r"(?:[)\]};{]|\b(?:const|override|final|noexcept|mutable|else|do|try)|->\s*[\w:<>,\s*&]+)$")
TYPE_HEAD = re.compile(r"(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:class|struct|union|enum)\b", re.DOTALL)
INITIALISERS = re.compile(r"\)\s*(?:noexcept\s*)?:\s(?!:)")
ACCESS = re.compile(r"\s*(?:public|private|protected)\s*:")
DECLARES = re.compile(r"\s*(?:static_assert|using|namespace|typedef|friend|extern|template)\b")


def masked(text):
    """The text with comments, preprocessor lines and the contents of literals blanked. All other characters keep their
    place."""
    out, at, end = list(text), 0, len(text)

    def blank(begin, finish):
        for i in range(begin, min(finish, end)):
            if out[i] != "\n":
                out[i] = " "
        return finish

    while at < end:
        two, here = text[at:at + 2], text[at]
        if two == "//":
            at = blank(at, (text.find("\n", at) + 1 or end + 1) - 1)
        elif two == "/*":
            at = blank(at, text.find("*/", at) + 2)
        elif here == "R" and RAW_STRING.match(text, at) and not (at and (text[at - 1].isalnum() or text[at - 1] == "_")):
            opening = RAW_STRING.match(text, at)
            finish = text.find(")" + opening.group(1) + '"', at)
            blank(at + 2, finish + 1 + len(opening.group(1)))
            at = finish + 2 + len(opening.group(1))
        elif here == '"' or (here == "'" and not (at and text[at - 1].isalnum())):
            finish = at + 1
            while finish < end and text[finish] != here:
                finish += 2 if text[finish] == "\\" else 1
            blank(at + 1, finish)
            at = finish + 1
        elif here == "#" and not text[text.rfind("\n", 0, at) + 1:at].strip():
            finish = at
            while finish < end and (text[finish] != "\n" or text[finish - 1] == "\\"):
                finish += 1
            at = blank(at, finish)
        else:
            at += 1
    return "".join(out)


class Statement:
    """text[begin:end] of a masked file, with its `;`. place: body (of a function or lambda), head (of a function, a
    loop, a condition), or outside (of every function: constants and tables)."""

    def __init__(self, begin, end, place):
        self.begin, self.end, self.place = begin, end, place

    def __repr__(self):
        return f"{self.place} {self.begin}-{self.end}"


def closing(code, at):
    """The position of the parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return len(code) - 1


def opened(code, begin, brace, outer, depth):
    """The kind of block that the brace at `brace` opens. `begin`: the start of the statement with the brace."""
    head = code[begin:brace].strip()
    if outer == "init":
        return "body" if re.search(r"\)\s*(?:mutable\s*|noexcept\s*)*(?:->\s*[\w:<>*&\s]+)?$|\]$", head) and "[" in head else "init"
    if depth == 0:
        if re.match(r"(?:inline\s+)?namespace\b", head) or head.startswith("extern \""):
            return "namespace"
        if TYPE_HEAD.match(head) and not head.endswith((")", "=")):
            return "enum" if re.match(r"(?:typedef\s+)?enum\b", head) else "class"
    if not head or BODY_BEFORE.search(head):
        return "body"
    return "init"


def statements(code):
    """The statements of a masked file, in order. A block is no statement; the text before its brace is a head."""
    found, stack, begin, depth = [], [], 0, 0  # stack: (kind, parenthesis depth outside) of each open brace
    for at, here in enumerate(code):
        kind = stack[-1][0] if stack else "namespace"
        if here in "([":
            depth += 1
        elif here in ")]":
            depth -= 1
        elif here == "{":
            new = opened(code, begin, at, kind, depth)
            stack.append((new, depth))
            if new != "init":
                if new == "body":
                    found.append(head(code, begin, at, kind))
                begin, depth = at + 1, 0
        elif here == "}" and stack:
            kind, depth = stack.pop()
            if kind != "init":
                begin = at + 1
        elif here == ";" and depth == 0 and kind != "init":
            found.append(Statement(begin, at + 1, place_of(code[begin:at], kind)))
            begin = at + 1
    return [s for s in found if s.place != "declaration"]


def head(code, begin, end, kind):
    if kind in ("body", "init"):
        return Statement(begin, end, "head")
    initialisers = INITIALISERS.search(code, begin, end)
    return Statement(initialisers.end(), end, "head") if initialisers else Statement(begin, end, "declaration")


def place_of(text, kind):
    text = ACCESS.sub("", text, count=1)
    if kind == "body":
        return "declaration" if DECLARES.match(text) else "body"
    if kind == "enum" or DECLARES.match(text):
        return "declaration"
    before_value = re.split(r"=|\{", text, maxsplit=1)
    return "outside" if len(before_value) == 2 and "(" not in before_value[0] else "declaration"


def controlled(code, begin, end):
    """The start of the statement in [begin, end) after leading `if`, `for`, `else`, `case` and labels."""
    at = begin
    while True:
        while at < end and code[at].isspace():
            at += 1
        match = CONTROL.match(code, at, end)
        if not match:
            return at
        at = match.end()
        if at < end and code[at] == "(" and not match.group().startswith(("case", "default", "else", "do", "try")):
            at = closing(code, at) + 1


class Lines:
    """Converts positions in a text to line numbers from 1."""

    def __init__(self, text):
        self.text = text
        self.begins = [0] + [i + 1 for i, c in enumerate(text) if c == "\n"]

    def number(self, place):
        return bisect.bisect_right(self.begins, place)

    def line(self, number):
        begin = self.begins[number - 1]
        return self.text[begin:(self.text.find("\n", begin) + 1 or len(self.text) + 1) - 1]
