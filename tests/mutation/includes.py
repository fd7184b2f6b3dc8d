"""Finds the sources that include a header, from their text."""
import pathlib
import re

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def includers(texts):
    """{header: the .cpp files that include it directly or indirectly}, from {path: text}. Paths are relative to the
    root of the tree."""
    direct = {}
    for path, text in texts.items():
        folder = pathlib.PurePosixPath(path).parent
        for name in INCLUDE.findall(text):
            for candidate in (str(folder / name), name, f"tests/{name}", f"engine/include/{name}"):
                if candidate in texts:
                    direct.setdefault(candidate, set()).add(path)
                    break
    found = {}
    for header in texts:
        if not header.endswith(".h"):
            continue
        reached, todo = set(), [header]
        while todo:
            for path in direct.get(todo.pop(), ()):
                if path not in reached:
                    reached.add(path)
                    todo.append(path)
        found[header] = {path for path in reached if path.endswith(".cpp")}
    return found
