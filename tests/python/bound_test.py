"""What the public headers have, the Python package has too. Needs no build."""

import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
HEADERS = SOURCE / "engine/include/dp"
BINDINGS = SOURCE / "apps/python"


def header(name):
    return (HEADERS / name).read_text()


def bound(file):
    return set(re.findall(r'(?:def|def_prop_ro)\(\s*(?:m, )?"(\w+)"|^  \w+\(m, "(\w+)"',
                          (BINDINGS / "src" / file).read_text(), re.MULTILINE))


def names(file):
    return {one or other for one, other in bound(file)}


class Bound(unittest.TestCase):
    def test_layers(self):
        builder = header("model.h").split("class ModelBuilder")[1]
        self.assertEqual(set(re.findall(r"^  Node (\w+)\(", builder, re.MULTILINE)) - names("builder.cpp"), set())

    def test_functions(self):
        text = (BINDINGS / "src/builder.cpp").read_text()
        for name in re.findall(r'kName = "(\w+)"', header("functions.h")):
            self.assertGreaterEqual(len(re.findall(rf"\b{name}\b", text)), 2, name)  # in the error and in the help

    def test_models(self):
        models = set(re.findall(r"^Model (\w+)\(", header("models.h"), re.MULTILINE))
        self.assertGreater(len(models), 20)
        self.assertEqual(models - names("models.cpp"), set())
        imported = (BINDINGS / "dp/models.py").read_text()
        self.assertEqual({name for name in models if not re.search(rf"\b{name}\b", imported)}, set())

    def test_optimizers(self):
        optimizers = re.search(r"using Optimizer = std::variant<(.*?)>", header("optimizer.h"), re.DOTALL).group(1)
        text, imported = ((BINDINGS / file).read_text() for file in ("src/optimizers.cpp", "dp/__init__.py"))
        for name in optimizers.replace(",", " ").split():
            self.assertIn(f'(m, "{name}"', text)
            self.assertIn(f"    {name},\n", imported)

    def test_data_sets(self):
        declared = header("dataset.h").split("namespace datasets")[1]
        sets = set(re.findall(r"^DatasetPair (\w+)\(", declared, re.MULTILINE))
        text, imported = ((BINDINGS / file).read_text() for file in ("src/data.cpp", "dp/datasets.py"))
        self.assertEqual({name for name in sets if f'"{name}"' not in text or f"    {name},\n" not in imported}, set())

    def test_public_headers_only(self):
        for file in (BINDINGS / "src").iterdir():
            for name in re.findall(r"#include [\"<](?:dp|engine|kernels|data|models)/([^\">]+)", file.read_text()):
                self.assertTrue((HEADERS / name).exists(), f"{file.name} includes {name}")


if __name__ == "__main__":
    unittest.main()
