"""Tests which tests reach.py names for a changed line."""
import pathlib
import tempfile
import types
import unittest

from reach import NEAR, Reach


class Queries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.reach = Reach(types.SimpleNamespace(home=pathlib.Path(folder.name)), None)
        self.reach.names = ["a", "b", "c"]

    def of(self, path, line, first=None, last=None):
        return self.reach.of_line(path, line, first or line, last or line)

    def test_a_line_has_its_own_tests(self):
        self.reach.lines = {"engine/x.cpp": {10: 0b001, 11: 0b010}}
        self.assertEqual(self.of("engine/x.cpp", 10), {"a"})

    def test_a_line_without_code_has_the_tests_of_its_statement_and_a_constant_those_of_the_file(self):
        self.reach.lines = {"engine/x.cpp": {10: 0b001, 20: 0b010}}
        self.assertEqual(self.of("engine/x.cpp", 11, 9, 12), {"a"})
        self.assertEqual(self.of("engine/x.cpp", 15), {"a", "b"})

    def test_a_line_that_no_test_reaches_has_the_tests_of_the_lines_before(self):
        self.reach.lines = {"engine/x.cpp": {10: 0b001, 12: 0, 13: 0b010}}
        self.assertEqual(self.of("engine/x.cpp", 12), {"a"})

    def test_a_line_of_optimised_code_also_has_the_tests_of_the_lines_around_it(self):
        self.reach.lines = {"kernels/x.cpp": {10: 0b001, 10 + NEAR: 0b010, 11 + NEAR: 0b100}}
        self.assertEqual(self.of("kernels/x.cpp", 10), {"a", "b"})

    def test_an_unknown_file_has_no_list(self):
        self.assertIsNone(self.of("engine/y.cpp", 1))


if __name__ == "__main__":
    unittest.main()
