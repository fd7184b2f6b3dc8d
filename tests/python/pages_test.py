"""Runs the examples of docs/guide/python.md, and those of from_data_parallel.md that this Python can run."""

import doctest
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import unittest

GUIDE = pathlib.Path(sys.argv.pop(1)).resolve() / "docs/guide"
HAS_TORCH = importlib.util.find_spec("torchvision") is not None


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def test_python(self):
        text = re.sub(r"^```.*$", "", (GUIDE / "python.md").read_text(), flags=re.MULTILINE)
        test = doctest.DocTestParser().get_doctest(text, {}, "python.md", "python.md", 0)
        self.assertGreater(len(test.examples), 40)
        result = doctest.DocTestRunner().run(test)
        self.assertEqual(result.failed, 0)

    def test_from_data_parallel(self):
        page = (GUIDE / "from_data_parallel.md").read_text()
        blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 3)
        if not HAS_TORCH:
            self.skipTest("torchvision is not installed")
        variables = {}
        for block in blocks:
            exec(compile(block, "from_data_parallel.md", "exec"), variables)


if __name__ == "__main__":
    unittest.main()
