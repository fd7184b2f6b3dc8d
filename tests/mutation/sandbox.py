"""A copy of the tree with its own build, in which source and object files are replaced temporarily."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
# Programs of tests/cuda that run the engine on simulated GPUs.
SIMULATED = ("test_simulated", "test_simulated_engine", "test_simulated_nccl")
# These test folders are not built, because they do not test mutated code.
LEFT_OUT = {"cuda", "simulated_cuda", "embed", "gpu", "mutation"}


class Failed(Exception):
    """A command of the unchanged tree failed."""


class Sandbox:
    def __init__(self, root, jobs):
        self.root, self.jobs = pathlib.Path(root), jobs
        self.home = self.root / "build/mutation"
        self.tree, self.build, self.originals = self.home / "tree", self.home / "build", self.home / "originals"

    # --- the copy and its build ---

    def refresh(self):
        """Updates the copy and its build to the state of the tree."""
        for part in ("tree", "build"):
            self.restore(part)
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root, stdout=subprocess.PIPE, check=True)
        wanted = {path for path in listed.stdout.decode().split("\0") if path and (self.root / path).is_file()}
        for path in wanted:
            copy_if_changed(self.root / path, self.tree / path)
        for path in [path for path in self.tree.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.tree)) not in wanted:
                path.unlink()
        self.configure()
        self.command(["ninja", "-C", str(self.build), "-j", str(self.jobs)] + self.targets(), "the unchanged tree does not build", show=True)
        database = json.loads((self.build / "compile_commands.json").read_text())
        self.compiles = {}  # path: [(compile command, object)] for the test programs
        for entry in database:
            output = re.search(r" -o (\S+) ", entry["command"]).group(1)
            if (self.build / output).exists():
                self.compiles.setdefault(os.path.relpath(entry["file"], self.tree), []).append((entry["command"], output))
        self.links = links(self.command(["ninja", "-C", str(self.build), "-t", "commands"] + self.targets(), "ninja does not list its commands"))

    def configure(self):
        guard = self.home / "safe_kill.o"
        flags = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                 "-DDP_LIBRARY_TYPE=SHARED", "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON", "-DDP_CUDA=OFF", "-DDP_INSTALL=OFF",
                 # Plugins are beside dp_train. A library with its own copy of a source must call that copy.
                 f"-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-Bsymbolic-functions -Wl,-rpath,{self.build}/apps/dp_train {guard}",
                 "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-Bsymbolic-functions"]
        before, now = self.home / "configured.json", json.dumps(flags)
        self.command(["c++", "-O1", "-fPIC", "-c", str(HERE / "safe_kill.cpp"), "-o", str(guard)], "safe_kill.cpp does not compile")
        if not (self.build / "build.ninja").exists() or not before.exists() or before.read_text() != now:
            self.command(["cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja", "--log-level=WARNING"] + flags,
                         "the unchanged tree does not configure", show=True)
            before.write_text(now)

    def targets(self):
        folders = sorted(path.parent.name for path in (self.tree / "tests").glob("*/CMakeLists.txt"))
        rules = (self.build / "build.ninja").read_text()
        # They are missing without the headers of a CUDA toolkit.
        simulated = [program for program in SIMULATED if f"\nbuild {program}: phony" in rules]
        return [f"tests/{folder}/all" for folder in folders if folder not in LEFT_OUT] + simulated

    def command(self, words, complaint, show=False):
        done = subprocess.run(words, stdout=None if show else subprocess.PIPE, stderr=None if show else subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Failed(f"{complaint}: {shlex.join(words)}\n{done.stdout or ''}")
        return done.stdout

    # --- replaced files ---

    def set_aside(self, path):
        """Moves a file of the sandbox away until restore(). A second call keeps the file of the first."""
        original = self.originals / path.relative_to(self.home)
        if not original.exists() and path.exists():
            original.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, original)

    def restore(self, part):
        """Moves back all files set aside in `tree` or `build`, with their time stamps, so that nothing is rebuilt."""
        folder = self.originals / part
        if not folder.exists():
            return
        for original in [path for path in folder.rglob("*") if path.is_file()]:
            os.replace(original, self.home / original.relative_to(self.originals))
        shutil.rmtree(folder)

    def compile(self, path, folder, flags="", limit=600):
        """Compiles one source to objects under `folder`. Returns {object: its new file}, or None if the compiler fails
        or takes longer than `limit` seconds."""
        objects = {}
        for command, output in self.compiles[path]:
            new = folder / output
            new.parent.mkdir(parents=True, exist_ok=True)
            words = [str(new) + word[len(output):] if word.startswith(output) else word for word in shlex.split(command)] + shlex.split(flags)
            try:
                done = subprocess.run(words, cwd=self.build, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit)
            except subprocess.TimeoutExpired:
                return None
            if done.returncode != 0:
                return None
            objects[output] = new
        return objects

    def link(self, objects, more=""):
        """Relinks the outputs that contain one of `objects`, with its new file. `more`: an object that is added to
        programs and shared libraries. Returns the outputs, or None if the linker fails. restore("build") undoes it."""
        changed, outputs = {old: str(new) for old, new in objects.items()}, []
        for output, command in self.links:
            words = command.split(" ")
            if not any(word in changed for word in words if word != output):
                continue
            self.set_aside(self.build / output)
            words = [changed.get(word, word) for word in words]
            if output.endswith(".a"):
                changed[output] = output
            elif more:
                words.insert(words.index("-o"), more)
            if subprocess.run(" ".join(words), shell=True, cwd=self.build, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
                return None
            outputs.append(output)
        return outputs


def links(commands):
    """[(output, command)] of all link and archive commands. Archives precede the outputs that need them."""
    found = []
    for command in commands.splitlines():
        match = re.search(r"\bar\S* qc (\S+)", command) or (None if " -c " in command else re.search(r" -o (\S+)", command))
        if match:
            found.append((match.group(1), command))
    return found


def copy_if_changed(source, target):
    content = source.read_bytes()
    if target.is_symlink() or not target.exists() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    if os.access(source, os.X_OK) != os.access(target, os.X_OK):
        shutil.copymode(source, target)
