"""Adds the layer of softsign/layer.py to a copy of the tree as docs/internals/adding_a_layer.md says, and the optimizer
of signum.py as CONTRIBUTING.md says, and tests both.

follow_guide.py SOURCE                  only the checks of the next paragraph's first sentence, without a compiler
follow_guide.py SOURCE WORK COMPILER    SOURCE: the tree; WORK: a folder for the copy and its build

Each section of the guide must name the files that its step changes, and the changes must fit these files. If the
changes to a file of REFUSED are left out, the compiler must reject the source beside it. With all changes the test
programs must pass. Exit status 4: skipped.
"""
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import signum
from softsign.layer import INSERTIONS, NEW_FILES, REFUSED, TESTS

HERE = pathlib.Path(__file__).resolve().parent
GUIDE = "docs/internals/adding_a_layer.md"
JOBS = "2"


def fail(message):
    sys.exit(f"{GUIDE} and the toy layer differ: {message}")


def command(words, complaint):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        fail(f"{complaint}:\n{done.stdout[-6000:]}")
    return done.stdout


def files_of(source):
    """{path: contents} of the tracked files, and of new ones that git does not ignore."""
    listed = command(["git", "-C", source, "ls-files", "-co", "--exclude-standard", "-z"], "git does not list the tree")
    return {path: (source / path).read_bytes() for path in listed.split("\0") if path and (source / path).is_file()}


def with_layer(files, left_out=""):
    """The files with the layer, except for the insertions into `left_out`, and with the optimizer."""
    after = dict(files)
    for path, anchor, text in [insertion[1:] for insertion in INSERTIONS] + list(signum.INSERTIONS):
        if path == left_out:
            continue
        content = after[path].decode()
        if content.count(anchor) != 1:
            fail(f"{path} has {content.count(anchor)} times the text '{anchor}'; update softsign/layer.py or signum.py")
        after[path] = content.replace(anchor, text.replace("@", anchor)).encode()
    for _, name, path in NEW_FILES:
        after[path] = (HERE / "softsign" / name).read_bytes()
    return after


def check_names(guide, files):
    """Each step's section names the files that the step changes, and the folders of those that it creates. All paths
    exist, and each row of the table of compiler messages is checked."""
    sections = dict(re.findall(r"^## (\d)\.(.*?)(?=^## |\Z)", guide, re.M | re.S))
    for step, path in [(step, path) for step, path, *_ in INSERTIONS] + [(step, path) for step, _, path in NEW_FILES]:
        name = path if path in files else path.rsplit("/", 1)[0] + "/"
        if f"`{name}`" not in sections.get(str(step), ""):
            fail(f"step {step} does not name `{name}`")
    for path in re.findall(r"`(\w+/[\w./]+|\w+\.(?:cpp|h|cu|py|cmake))`", guide):
        if not any(file.startswith(path) or file.endswith("/" + path) for file in files):
            fail(f"it names `{path}`, which does not exist")
    rows = [row for row in sections["3"].splitlines() if row.startswith("|")]
    for source in re.findall(r"`([\w/]+\.cpp)`", "\n".join(rows)):
        if source not in [refused for _, refused in REFUSED]:
            fail(f"no entry of REFUSED in softsign/layer.py is about {source}")


def check_names_of_optimizer(guide):
    """The section on optimizers names the files that the optimizer changes."""
    section = re.search(r"^## Add an optimizer$(.*?)(?=^## |\Z)", guide, re.M | re.S)[1]
    for path, *_ in signum.INSERTIONS:
        if f"`{path}`" not in section:
            fail(f"the section on optimizers in CONTRIBUTING.md does not name `{path}`")


def write(folder, files):
    """Makes the folder hold these files. Equal ones keep their time stamps."""
    for path, content in files.items():
        target = folder / path
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        name = path.relative_to(folder).as_posix()
        if name not in files and not name.startswith("build/"):
            path.unlink()


def check_refused(files, tree, build):
    """The compiler reports the layer in each source for which a step is left out. The changed files are in a folder
    that the compiler searches first."""
    commands = {entry["file"]: entry["command"] for entry in json.loads((build / "compile_commands.json").read_text())}
    overlay = tree.parent / "overlay"
    for left_out, source in REFUSED:
        shutil.rmtree(overlay, ignore_errors=True)
        write(overlay, {left_out: with_layer(files, left_out)[left_out]})
        path = str(tree / source)
        words = [str(overlay / source) if word == path and left_out == source else word for word in shlex.split(commands[path])]
        done = subprocess.run(words + ["-iquote", str(overlay), "-fsyntax-only"], cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0 or "softsign" not in done.stdout.lower():
            fail(f"without its lines in {left_out}, the compiler should refuse {source} because of the layer:\n{done.stdout[-3000:]}")
        print(f"the compiler refuses {source} without the layer's lines in {left_out}", flush=True)


def main(source, work="", compiler=""):
    missing = [program for program in ("git", *(["ninja", "cmake"] if work else [])) if not shutil.which(program)]
    if missing or not (pathlib.Path(source) / ".git").exists():
        print(f"skipped: {missing[0]} is missing" if missing else "skipped: the tree is not a git clone")
        return 4
    files = files_of(pathlib.Path(source))
    check_names(files[GUIDE].decode(), files)
    check_names_of_optimizer(files["CONTRIBUTING.md"].decode())
    changed = with_layer(files)
    if not work:
        return 0
    tree = pathlib.Path(work) / "tree"
    build = tree / "build/toy"  # as deep as build/release, so that ccache shares objects between clones
    write(tree, changed)
    command(["cmake", "-S", tree, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release",
             "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DDP_WERROR=ON", "-DDP_CUDA=OFF",
             "-DDP_BUILD_APPS=OFF", "-DDP_INSTALL=OFF"], "the tree with the layer cannot be configured")
    check_refused(files, tree, build)
    programs = TESTS + signum.TESTS
    command(["cmake", "--build", build, "-j", JOBS, "--target", *programs], "the tree with the layer does not build")
    for program in programs:
        found = [path for path in build.rglob(program) if path.is_file()]
        print(command(found[:1], f"{program} fails").strip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
