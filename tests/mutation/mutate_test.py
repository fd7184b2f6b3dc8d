"""Tests whole calls on a project with one library and one test program."""
import contextlib
import io
import json
import pathlib
import re
import subprocess
import tempfile
import unittest
import unittest.mock

import mutate
from mutants import mutants_of
from sandbox import Sandbox

FILES = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.25)
project(toy CXX)
add_library(dp ${DP_LIBRARY_TYPE} engine/one.cpp engine/two.cpp engine/lonely.cpp)
target_include_directories(dp PUBLIC ${PROJECT_SOURCE_DIR})
enable_testing()
add_subdirectory(tests/toy)
""",
    "engine/inner.h": "inline int inner(int x) {\n  return x * 7;\n}\n",
    "engine/one.cpp": """int twice(int x) {
  return x + x;
}
int unread(int x) {
  return x + 3;
}
int nothing() {
  return 0;
}
struct Named {
  const char* name;
} named;
const char* name() {
  return named.name + 1;
}
int endless(int n) {
  volatile int i = 0;
  while (i < n) i = i + 1;
  return i;
}
""",
    "engine/lonely.cpp": "int unreached(int x) {\n  return x - 5;\n}\n",
    "engine/two.cpp": '#include "engine/inner.h"\nint outer(int x) {\n  return inner(x);\n}\nint doomed(int x) {\n  return x * 9;\n}\n',
    "tests/toy/CMakeLists.txt": """add_executable(test_toy toy_test.cpp)
target_link_libraries(test_toy PRIVATE dp)
foreach(case twice unread endless crash inner)
  add_test(NAME "toy: ${case}" COMMAND test_toy ${case})
endforeach()
set_tests_properties("toy: inner" PROPERTIES LABELS all)
""",
    # Like a Catch2 program. The test `crash` ends by a signal, as some of our tests do. The lines that it reached
    # count.
    "tests/toy/toy_test.cpp": """#include <csignal>
#include <cstdio>
#include <cstring>
#include "engine/inner.h"
int twice(int); int unread(int); int nothing(); int endless(int); int outer(int); int doomed(int);
int main(int, char** argv) {
  int failed = 0;
  const auto has = [&](const char* name) { return std::strstr(argv[1], name) != nullptr; };
  if (has("twice") && twice(3) != 6) failed = 1, std::puts("twice");
  if (has("unread")) unread(1), nothing();
  if (has("endless") && endless(3) != 3) failed = 1;
  if (has("inner") && inner(outer(1)) != 49) failed = 1;
  if (has("crash")) doomed(1), std::raise(SIGKILL);
  return failed;
}
""",
}


class WholeCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        for path, text in FILES.items():
            (cls.root / path).parent.mkdir(parents=True, exist_ok=True)
            (cls.root / path).write_text(text)
        (cls.root / ".gitignore").write_text("build/\n")
        (cls.root / "equivalent.txt").write_text("# why\nengine/one.cpp ::: return i; ::: return {}; ::: it is said here\n")
        subprocess.run(["git", "init", "-q", cls.root], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def mutants(self, *wanted):
        """The mutants with these files and changed lines."""
        every = [mutant for path, text in FILES.items() if path.startswith("engine") for mutant in mutants_of(path, text)]
        return [next(mutant for mutant in every if (mutant.path, mutant.after) == (f"engine/{path}", after)) for path, after in wanted]

    def call(self, mutants, *words):
        """({changed line: its record}, printed text)."""
        printed = io.StringIO()
        with unittest.mock.patch("mutate.sample", lambda *_: mutants), unittest.mock.patch("mutate.EQUIVALENT", self.root / "equivalent.txt"), \
                contextlib.redirect_stdout(printed):
            mutate.run(self.root, mutate.options(["engine", "--sample", str(len(mutants)), "--jobs", "2", *words]))
        results = json.loads(next((self.root / "build/mutation").glob(f"results-1-{len(mutants)}-engine.json")).read_text())
        return {record["after"]: record for record in results["mutants"]}, printed.getvalue()

    def test_each_outcome_is_reported_and_the_tree_stays_unchanged(self):
        chosen = self.mutants(("one.cpp", "return x - x;"), ("one.cpp", "return x - 3;"), ("one.cpp", "return {};"), ("lonely.cpp", "return x + 5;"),
                              ("one.cpp", "while (i >= n) i = i + 1;"), ("one.cpp", "while (i < n) i = i + 0;"), ("inner.h", "return x / 7;"),
                              ("one.cpp", "return named.name - 1;"), ("two.cpp", "return x / 9;"))
        chosen[2] = next(m for m in mutants_of("engine/one.cpp", FILES["engine/one.cpp"]) if (m.before, m.after) == ("return 0;", "return {};"))
        chosen += [m for m in mutants_of("engine/one.cpp", FILES["engine/one.cpp"]) if (m.before, m.after) == ("return i;", "return {};")]
        with unittest.mock.patch.object(chosen[7], "applied", lambda text: text + "this is no code\n"), \
                unittest.mock.patch("test_cases.limit", lambda chunk: 2.0 if "endless" in chunk[0].name else 600.0):
            records, printed = self.call(chosen)
        self.assertEqual({(record["after"], record["outcome"]) for record in json.loads(
            (self.root / "build/mutation/results-1-10-engine.json").read_text())["mutants"]},
            {("return x - x;", "killed"), ("return x - 3;", "survived"), ("return {};", "same code"), ("return x + 5;", "survived"),
             ("return x / 9;", "survived"), ("while (i >= n) i = i + 1;", "killed"), ("while (i < n) i = i + 0;", "killed"), ("return x / 7;", "killed"),
             ("return named.name - 1;", "not compiled"), ("return {};", "equivalent")}, printed)
        self.assertEqual(records["while (i < n) i = i + 0;"]["why"], "toy: endless: timed out")
        self.assertEqual((records["return x - 3;"]["why"], records["return x + 5;"]["why"]), ("1 tests pass", "no test reaches it"))
        self.assertIn("toy: inner", records["return x / 7;"]["why"])
        self.assertRegex(printed, r"engine +4 +3 +1 +1 +1 +0 +57\.1")
        self.assertIn("killed by the tier fast: 3 of 4", printed)
        self.assertIn("excluded, it fails without a mutant: toy: crash", printed)
        for path, text in FILES.items():
            self.assertEqual((self.root / path).read_text(), text)
            self.assertEqual((self.root / "build/mutation/tree" / path).read_text(), text)

        records, printed = self.call(chosen, "--continue")
        self.assertNotIn("of 10,", printed)
        records, printed = self.call(chosen, "--survivors")
        self.assertEqual(printed.count(" of 10, survived"), 3)
        self.assertNotIn("finding the lines", printed)  # nothing changed, so reach.py runs no tests

    def test_a_source_that_an_earlier_call_left_out_is_measured(self):
        self.call(self.mutants(("lonely.cpp", "return x + 5;")))
        records, printed = self.call(self.mutants(("one.cpp", "return x - x;")))
        self.assertIn("compiling 1 instrumented sources", printed)
        self.assertEqual(records["return x - x;"]["why"], "toy: twice: failed", printed)

    def test_code_that_this_processor_cannot_run_is_not_judged(self):
        with unittest.mock.patch("mutate.NEEDS", {re.compile("engine/one"): "no_such_feature", re.compile("engine/two"): "processor"}):
            records, printed = self.call(self.mutants(("one.cpp", "return x - x;"), ("two.cpp", "return x / 9;")))
        self.assertEqual([(record["outcome"], record["why"]) for record in records.values()][0], ("not run", "this processor lacks no_such_feature"))
        self.assertEqual(records["return x / 9;"]["outcome"], "survived", printed)

    def test_a_call_that_was_killed_leaves_nothing_behind(self):
        sandbox = Sandbox(self.root, 2)
        sandbox.home.mkdir(parents=True, exist_ok=True)
        sandbox.refresh()
        source, library = sandbox.tree / "engine/one.cpp", sandbox.build / "libdp.so"
        before, built = library.read_bytes(), library.stat().st_mtime_ns
        sandbox.set_aside(source)
        source.write_text("int broken;\n")
        objects = sandbox.compile("engine/one.cpp", sandbox.home / "mutant-0")
        self.assertEqual(sandbox.link(objects), ["libdp.so"])
        self.assertNotEqual(library.read_bytes(), before)
        Sandbox(self.root, 2).refresh()
        self.assertEqual((library.read_bytes(), library.stat().st_mtime_ns), (before, built))
        self.assertEqual(source.read_text(), FILES["engine/one.cpp"])


if __name__ == "__main__":
    unittest.main()
