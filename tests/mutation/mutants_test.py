"""Tests the changes of a line and the stability of a sample."""
import unittest

from includes import includers
from mutants import mutants_of, sample


def after(line, before="void f() {\n", behind="\n}\n"):
    return {mutant.after for mutant in mutants_of("a.cpp", before + line + behind) if mutant.line == before.count("\n") + 1}


class Changes(unittest.TestCase):
    def test_each_rule_changes_one_thing(self):
        for line, changed in (("if (a < b) run();", ["if (a <= b) run();", "if (a >= b) run();", "if (!(a < b)) run();", "if (true) run();", "if (a < b) ;"]),
                              ("x = a + b * -c;", ["x = a - b * -c;", "x = a + b / -c;", "x = a + b * c;", ";"]),
                              ("if (a && !b) return;", ["if (a || !b) return;", "if (a && b) return;", "if (a && !b) ;"]),
                              ("x += 0.5f;", ["x -= 0.5f;", "x = 0.5f;", "x += 0.0f;", "x += (0.5f * 2);"]),
                              ("return n > 1 ? 20 : 3;", ["return n > 1 && false ? 20 : 3;", "return n > 0 ? 20 : 3;", "return n > 1 ? 40 : 3;",
                                                          "return n > 1 ? 20 : 4;", "return {};"]),
                              ("put(first, second, std::min(1, k), true);", ["put(second, first, std::min(1, k), true);",
                                                                             "put(first, second, std::max(1, k), true);",
                                                                             "put(first, second, std::min(1, k), false);"]),
                              ("for (int i = 0; i < n; ++i) {}", ["for (int i = 1; i < n; ++i) {}", "for (int i = 0; i < n; --i) {}"]),
                              ("all[i].push_back(x);", [";"]), ("*out = x;", [";"]), ("++n;", ["--n;"]), ("break;", ["continue;", ";"])):
            for expected in changed:
                self.assertIn(expected, after(line), line)

    def test_declarations_types_and_texts_are_left_alone(self):
        for line in ("const auto& x = y;", "std::vector<int> all;", "T&& b;", 'x("a < b + 1");', "// a < b", "int* p;", "static_assert(a < 1);"):
            self.assertLessEqual(after(line), {";"}, line)
        self.assertEqual(after("int f(int a, int b = 3);", before="", behind=""), set())
        self.assertIn("constexpr int kA = 2 - 1;", after("constexpr int kA = 2 + 1;", before="", behind=""))
        self.assertNotIn("x = a - \"b\";", after('x = a + "b";'))

    def test_only_the_call_that_sends_a_message_is_mutated(self):
        self.assertEqual(after('throw Error(ErrorCode::usage, "a" + text(n + 1));'), {";"})
        self.assertIn("if (n >= 2) fail(where, n + 1);", after("if (n > 2) fail(where, n + 1);"))
        self.assertNotIn("if (n > 2) fail(where, n - 1);", after("if (n > 2) fail(where, n + 1);"))
        self.assertEqual(after('std::fprintf(stderr, "%d", n + 1);'), set())

    def test_removing_a_multi_line_statement_keeps_line_numbers(self):
        text = "void f() {\n  run(a,\n      b);\n  g();\n}\n"
        removal = next(mutant for mutant in mutants_of("a.cpp", text) if mutant.rule == "removal" and mutant.line == 2)
        self.assertEqual(removal.applied(text), "void f() {\n  ;\n\n  g();\n}\n")
        self.assertEqual(removal.key(), ("a.cpp", "run(a,", ";"))


class Sample(unittest.TestCase):
    TEXT = "int f(int a) {\n" + "".join(f"  a += {i} * g{i}(a);\n" for i in range(60)) + "  return a;\n}\n"

    def keys(self, text, seed=1, count=20):
        return {mutant.key() for mutant in sample({"a.cpp": text}, count, seed)}

    def test_the_sample_follows_from_the_seed_with_one_mutant_per_line(self):
        self.assertEqual(self.keys(self.TEXT), self.keys(self.TEXT))
        self.assertNotEqual(self.keys(self.TEXT), self.keys(self.TEXT, seed=2))
        self.assertEqual(len({before for _, before, _ in self.keys(self.TEXT)}), 20)
        self.assertEqual(len(self.keys(self.TEXT, count=1000)), 61)

    def test_a_new_line_elsewhere_changes_at_most_one_mutant(self):
        other = self.TEXT.replace("int a) {\n", "int a) {\n  // new\n  a = h(a);\n")
        self.assertGreaterEqual(len(self.keys(self.TEXT) & self.keys(other)), 19)

    def test_equal_lines_are_distinguished(self):
        drawn = sample({"a.cpp": "void f() {\n  run();\n  run();\n}\n"}, 9, 1)
        self.assertEqual(sorted((mutant.line, mutant.nth) for mutant in drawn), [(2, 1), (3, 2)])


class Includes(unittest.TestCase):
    def test_direct_and_indirect_includes_are_found(self):
        texts = {"a/x.h": "", "a/y.h": '#include "x.h"\n', "a/one.cpp": '#include "a/y.h"\n', "tests/t.h": '#include "a/x.h"\n',
                 "tests/b/two.cpp": '#include "t.h"\n', "engine/include/dp/z.h": "", "three.cpp": "#include <dp/z.h>\n"}
        found = includers(texts)
        self.assertEqual(found["a/x.h"], {"a/one.cpp", "tests/b/two.cpp"})
        self.assertEqual(found["a/y.h"], {"a/one.cpp"})
        self.assertEqual(found["engine/include/dp/z.h"], {"three.cpp"})


if __name__ == "__main__":
    unittest.main()
