"""site_test.py FOLDER: builds the site into FOLDER. Broken links are detected; comments of headers become Doxygen's."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = sys.argv.pop()

HEADER = """// A file.
//
//   f("\\n");
#pragma once

// A struct of <T>.
struct S {
  int a;  // behind,
          // continued
  // Above.
  void f() {
    // inside
    g();  // inside
  }

  // --- a section ---
  // Two lines with `x < y`.
  // The last.
  int b;

  // Belongs to nothing.
};
struct T {  // after a brace
};
"""
READABLE = r"""/// A file.
///
///       f("\n");
/// \file

/// A struct of \<T\>.
struct S {
  int a;  ///< behind,
          ///< continued
  /// Above.
  void f() {
    // inside
    g();  // inside
  }

  // --- a section ---
  /// Two lines with `x < y`.
  /// The last.
  int b;

  // Belongs to nothing.
};
/** after a brace */ struct T {
};
"""


class Site(unittest.TestCase):
    def test_comments_of_headers(self):
        script = ROOT / "docs/site/comments.awk"
        text = subprocess.run(["awk", "-f", script], input=HEADER, capture_output=True, text=True, check=True).stdout
        self.assertEqual(text, READABLE)

    def test_broken_links_and_pages_without_an_index(self):
        with tempfile.TemporaryDirectory() as name:
            tree = pathlib.Path(name)
            shutil.copytree(ROOT / "docs/site", tree / "docs/site")
            for path, text in {
                    "README.md": "# dp\n\n[a](docs/none.md) [b](docs/page.md#no-part) [c](docs/page.md#a-part)\n",
                    "docs/README.md": "# Pages\n\n**Guide**: all.\n\n[page](page.md)\n",
                    "docs/page.md": "# Page\n\n## A part\n\n[header](../engine/include/dp/b.h)\n",
                    "docs/guide/embedding.md": "# Embedding\n",
                    "docs/decisions/README.md": "# Decisions\n",
                    "engine/include/dp/a.h": "// A.\n#pragma once\n"}.items():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_text(text)
            run = subprocess.run([tree / "docs/site/build", tree / "site"], capture_output=True, text=True)
            self.assertNotEqual(run.returncode, 0)
            for part in ["docs/none.md", "no-part", "embedding.md: WARNING: document isn't included in any toctree"]:
                self.assertIn(part, run.stderr)
            self.assertNotIn("#a-part", run.stderr)
            site = tree / "other"
            site.mkdir()
            (site / "a.html").write_text("<a href='b.html#x'><a href='b.html#y'><a href='c.html'>")
            (site / "b.html").write_text("<p id=x>")
            script = tree / "docs/site/check_links.py"
            run = subprocess.run([sys.executable, "-B", script, site], capture_output=True, text=True)
            self.assertEqual(run.stderr, "a.html: b.html#y has no such anchor\na.html: c.html does not exist\n")

    def test_the_site(self):
        run = subprocess.run([ROOT / "docs/site/build", OUT], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        index = pathlib.Path(OUT, "index.html").read_text()
        self.assertIn("docs/guide/embedding.html", index)
        members = pathlib.Path(OUT, "api/classdp_1_1DataParallel.html").read_text()
        self.assertIn("updates the weights on every replica", members)


if __name__ == "__main__":
    unittest.main()
