"""Tests which parts of a source count as code."""
import unittest

from source_text import Lines, masked, statements

SOURCE = '''// a + b;
#include "x.h"
#define TWO \\
  2 + 2
namespace dp {
namespace fs = std::filesystem;
constexpr int kTable[] = {1, 2};  /* 3; */
int declared(int a, int b = 4);
static_assert(sizeof(int) == 4);
enum class Kind { one = 1, two };
class Box : public Base {
 public:
  explicit Box(int size) : size_(size + 1), other_{2} {}
  int size() const { return size_; }

 private:
  int size_ = 0;
};

template <class T>
void work(std::vector<T>& all, int n) {
  const std::string text = "a; { \\" b", raw = R"(x; " {)";
  for (int i = 0; i < n; ++i) all[i] = 1'000 * '{';
  if (n > 3) {
    run(all, [&](int x) { return x + 1; });
  } else {
    static_assert(sizeof(T) == 4);
  }
  struct stat one {
  }, two{};
  auto made = Point{n, {1, 2}};
}
}  // namespace dp
'''


def found(source):
    code = masked(source)
    return [(s.place, " ".join(code[s.begin:s.end].split())) for s in statements(code)]


class SourceText(unittest.TestCase):
    def test_masking_keeps_every_offset(self):
        code = masked(SOURCE)
        self.assertEqual([len(line) for line in code.split("\n")], [len(line) for line in SOURCE.split("\n")])
        for gone in ("a + b", "include", "2 + 2", "3;", '\\" b', 'x; "'):
            self.assertNotIn(gone, code)
        self.assertIn("1'000 * ' ';", code)

    def test_statements_heads_and_constants_are_found_without_declarations(self):
        code = found(SOURCE)
        for expected in (("outside", "constexpr int kTable[] = {1, 2};"), ("outside", "private: int size_ = 0;"), ("body", "return size_;"),
                         ("head", "size_(size + 1), other_{2}"), ("body", "for (int i = 0; i < n; ++i) all[i] = 1'000 * ' ';"), ("head", "if (n > 3)"),
                         ("head", "run(all, [&](int x)"), ("body", "return x + 1;"), ("body", "auto made = Point{n, {1, 2}};")):
            self.assertIn(expected, code)
        text = " ".join(statement for _, statement in code)
        for declaration in ("declared", "static_assert", "Kind", "one = 1", "filesystem", "class Box", "void work"):
            self.assertNotIn(declaration, text)

    def test_lines_are_counted_from_1(self):
        lines = Lines("ab\nc\n")
        self.assertEqual([lines.number(place) for place in (0, 2, 3, 4)], [1, 1, 2, 2])
        self.assertEqual([lines.line(1), lines.line(2)], ["ab", "c"])


if __name__ == "__main__":
    unittest.main()
