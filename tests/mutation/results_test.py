"""Tests results.py: what is loaded again, which mutants count, and the report."""
import pathlib
import tempfile
import types
import unittest

from results import KILLED, LISTED, NOT_RUN, SAME_CODE, SURVIVED, Results, equivalents


def mutant(path, line, nth=1):
    return types.SimpleNamespace(path=path, line=line, rule="constant", before="return 1;", after="return 2;", nth=nth,
                                 key=lambda: (path, "return 1;", "return 2;"))


class ResultsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "results.json"
        self.results = Results(self.file, {"seed": 1})

    def test_only_killed_and_survived_mutants_count(self):
        for line, outcome in enumerate((KILLED, KILLED, KILLED, SURVIVED, LISTED, SAME_CODE, NOT_RUN)):
            self.results.add(mutant("engine/a.cpp", line, nth=line), outcome, 1, tier="fast" if line < 2 else "all")
        self.results.add(mutant("data/b.cpp", 1), SURVIVED, 1, why="all tests passed")
        self.assertEqual(self.results.share("engine/"), 75)
        self.assertEqual(self.results.share(), 60)
        self.assertIsNone(self.results.share("models/"))
        report = self.results.report(["engine", "data"])
        self.assertIn("killed by the tier fast: 2 of 3", report)
        self.assertIn("data/b.cpp:1: constant; all tests passed", report)
        self.assertIn("data/b.cpp ::: return 1; ::: return 2; :::", report)

    def test_a_later_call_with_the_same_sample_goes_on(self):
        self.results.add(mutant("engine/a.cpp", 7), SURVIVED, 2)
        again = Results(self.file, {"seed": 1})
        again.load()
        self.assertEqual(again.of(mutant("engine/a.cpp", 9))["outcome"], SURVIVED)  # another line was added above
        self.assertIsNone(again.of(mutant("engine/a.cpp", 7, nth=2)))
        again.add(mutant("engine/a.cpp", 7), KILLED, 2)
        self.assertEqual((len(again.records), again.count(KILLED)), (1, 1))
        other = Results(self.file, {"seed": 2})
        other.load()
        self.assertEqual(other.records, [])

    def test_each_listed_mutant_has_a_reason(self):
        found = equivalents("# why\n\nengine/a.cpp ::: x + 1; ::: x + 2; ::: nobody reads x\n")
        self.assertEqual(found, {("engine/a.cpp", "x + 1;", "x + 2;"): "nobody reads x"})
        for bad in ("engine/a.cpp ::: x + 1; ::: x + 2;", "engine/a.cpp ::: x + 1; ::: x + 2; ::: "):
            with self.assertRaisesRegex(ValueError, "line 1 is not"):
                equivalents(bad)


if __name__ == "__main__":
    unittest.main()
