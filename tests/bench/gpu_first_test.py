"""Tests benchmarks/gpu/gpu_first.py with a fake PyTorch (fake_torch), the facts that gpu_record.py records of a host,
and failures of pytorch_step.py and pytorch_ops.py. No GPU, no PyTorch. Argument: the source folder."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
FAKE = pathlib.Path(__file__).resolve().parent / "fake_torch"
sys.path.insert(0, str(SOURCE / "benchmarks/gpu"))
sys.dont_write_bytecode = True

import gpu_first  # noqa: E402
import gpu_record  # noqa: E402


def run(script, *words, fake=None, path=FAKE):
    """(status, output, errors) of a script with the fake PyTorch, or without PyTorch."""
    environment = {**os.environ, "FAKE_TORCH": fake or "", "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, SOURCE / "benchmarks" / script, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=False, env=environment, timeout=120)
    return done.returncode, done.stdout, done.stderr


class First(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def measure(self, *words, fake=None, status=0):
        ended, _, errors = run("gpu/gpu_first.py", "--commit", "abc", "--out", str(self.home / "first"), *words, fake=fake)
        self.assertEqual(ended, status, errors)
        return json.loads((self.home / "first.json").read_text()), (self.home / "first.md").read_text()

    def test_both_networks_and_both_stems_are_measured(self):
        """Compares the forward passes in GFLOP an image, without the linear layers: 1.111, 3.628 and 0.0240."""
        gigaflops = [sum(2e-9 * ((size + 2 * padding - kernel) // stride + 1) ** 2 * out * channels * kernel ** 2 * times
                         for channels, size, out, kernel, stride, padding, times in shapes) for shapes in gpu_first.NETWORKS.values()]
        for found, whole, linear in zip(gigaflops, (1.111, 3.628, 0.0240), (512 * 100, 512 * 1000, 9216 * 128 + 128 * 10)):
            self.assertAlmostEqual(found, whole - 2e-9 * linear, delta=0.001 * whole + 0.0001)
        rows = gpu_first.rows_to_measure(gpu_first.arguments([]))
        self.assertEqual({(row["batch"], row["type"]) for row in rows}, {(batch, kind) for batch in (256, 1024) for kind in ("bf16", "fp16")})

    def test_times_are_measured_on_the_device(self):
        record, page = self.measure("--batches", "256", "--types", "bf16")
        costs = {row["what"]: row for row in record["costs"]}
        self.assertEqual({row["why"] for row in record["costs"]}, {""})
        for what, value in (("a kernel launched by PyTorch, us", 8), ("a kernel as a node of a graph, us", 3), ("a graph of one kernel, one after another, us", 3),
                            ("an external event recorded in a graph, us more a node", 0.5), ("an external event waited for in a graph, us more a node", 0.25),
                            ("copy on the device, GB/s", 2 * 2**28 * 1e-3 / (2**28 / 100e3 + 5))):
            self.assertAlmostEqual(costs[what]["value"], value, 6, what)
        row = next(row for row in record["convolutions"] if row["geometry"] == [64, 32, 64, 3, 1, 1])
        self.assertAlmostEqual(row["forward_us"], 10)
        self.assertAlmostEqual(row["weights_us"], 20)
        self.assertAlmostEqual(row["data_tflops"], 2 * 256 * 64 * 64 * 9 * 32 * 32 / 20e-6 * 1e-12)
        self.assertIn("| ResNet18, 3x3 stem, 32x32 | 256 | bf16 | 64x32x32 to 64, 3x3, stride 1, padding 1 | 4 | 10.0 (1933) | 20.0 (966) | 20.0 (966) |", page)
        # 20 convolutions, one of them the first
        self.assertIn("| ResNet18, 7x7 stem, 224x224 | 256 | bf16 | 0.200 | 0.380 | 0.400 |", page)
        self.assertIn("| MNIST convnet, 28x28 | 256 | bf16 | 1x28x28 to 32, 3x3, stride 1, padding 0 | 1 | 10.0", page)

    def test_the_record_names_command_device_and_versions(self):
        record, page = self.measure("--batches", "256", "--types", "bf16", "--networks", "MNIST")
        self.assertIn("--batches 256 --types bf16 --networks MNIST", record["command"])
        self.assertRegex(record["date"], r"^20\d\d-\d\d-\d\d \d\d:\d\d UTC$")
        for key, value in (("commit", "abc"), ("device", "Fake GPU"), ("compute capability", "9.0"), ("PyTorch", "9.9"), ("PyTorch's CUDA", "13.9"),
                           ("PyTorch's cuDNN", 99100), ("cuDNN plans tried for each", 10)):
            self.assertEqual(record["facts"][key], value)
            self.assertIn(f"- {key}: {value}", page)
        self.assertIn(f"`{record['command']}`, {record['date']}", page)

    def test_a_measurement_out_of_memory_is_a_row_and_the_others_run(self):
        record, page = self.measure("--batches", "256", "--types", "bf16", fake="memory old")
        failed = [row for row in record["convolutions"] if row["why"]]
        self.assertEqual({row["geometry"][2] for row in failed}, {512})
        self.assertEqual(len(failed), 6)
        self.assertIn("OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB", page)
        self.assertIn("| ResNet18, 3x3 stem, 32x32 | 256 | bf16 | - | - | - |", page)  # no sum if a figure is missing
        self.assertEqual([row["what"][:17] for row in record["costs"] if row["why"]], ["an external event"] * 2)

    def test_a_broken_gpu_is_reported_in_the_record(self):
        record, page = self.measure("--batches", "256", "--types", "bf16", fake="broken")
        self.assertEqual({row["why"] for row in record["convolutions"]}, {"RuntimeError: CUDA error: an illegal memory access advice"})
        self.assertTrue(all("value" in row for row in record["costs"]))
        self.assertIn("illegal memory access", page)

    def test_measurements_without_time_left_are_reported(self):
        record, _ = self.measure("--limit", "-1", status=1)
        self.assertEqual({row["why"] for row in [*record["costs"], *record["convolutions"]]}, {"no time was left"})

    def test_missing_pytorch_and_missing_gpu_are_reported(self):
        for fake, words in (("libraries", "libcudart.so.13"), ("no-gpu", "finds no GPU")):
            status, _, errors = run("gpu/gpu_first.py", "--out", str(self.home / "none"), fake=fake)
            self.assertEqual(status, 1)
            self.assertIn(words, errors)
            self.assertFalse((self.home / "none.json").exists())


class Facts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def pretend(self, name, script):
        file = self.home / name
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)

    def test_devices_driver_and_toolkit_are_named(self):
        self.pretend("nvidia-smi", 'echo "NVIDIA H200, 580.1, 143771 MiB, 1980 MHz, 3201 MHz"; echo "NVIDIA H200, 580.1, 143771 MiB, 1980 MHz, 3201 MHz"\n')
        self.pretend("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'\n")
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.home}:{os.environ['PATH']}"}):
            os.environ.pop("CUDACXX", None)
            record = gpu_record.begun("gpu", ["--out", "a b"], "abc")
        facts = record["facts"]
        self.assertEqual((facts["GPU 1"], facts["driver"], facts["CUDA toolkit"]), ("NVIDIA H200, 143771 MiB, 1980 MHz, 3201 MHz", "580.1", "13.0.88"))
        self.assertEqual((facts["commit"], record["command"]), ("abc", "./dev bench gpu --out 'a b'"))

    def test_a_host_without_driver_and_toolkit_is_not_an_error(self):
        with unittest.mock.patch.dict(os.environ, {"PATH": str(self.home)}):
            self.assertEqual((gpu_record.gpus(), gpu_record.commit_of()), ([], "unknown"))
        facts, libraries = gpu_record.asked_of("/nonexistent")
        self.assertTrue(facts["PyTorch"].startswith("none: "))
        self.assertEqual(libraries, {})

    def test_another_python_reports_its_pytorch_and_libraries(self):
        for file in ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cu13/lib/libcublasLt.so.13"):
            (self.home / file).parent.mkdir(parents=True)
            (self.home / file).write_text("")
        (self.home / "torch").symlink_to(FAKE / "torch")
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": str(self.home), "FAKE_TORCH": ""}):
            facts, libraries = gpu_record.asked_of(sys.executable)
        self.assertEqual((facts["PyTorch"], facts["PyTorch's cuDNN"]), ("9.9", 99100))
        self.assertEqual(libraries["DP_CUDNN_LIBRARY"], str(self.home / "nvidia/cudnn/lib/libcudnn.so.9"))
        self.assertEqual(libraries["DP_CUBLASLT_LIBRARY"], str(self.home / "nvidia/cu13/lib/libcublasLt.so.13"))

    def test_a_record_is_replaced_atomically(self):
        out = self.home / "deep/r"
        gpu_record.write(out, {"a": 1}, lambda record: "page")
        with unittest.mock.patch.object(os, "replace", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            gpu_record.write(out, {"a": 2}, lambda record: "page")
        self.assertEqual(json.loads((self.home / "deep/r.json").read_text()), {"a": 1})

    def test_a_cell_never_splits_its_table_row(self):
        self.assertEqual(gpu_record.table(["a"], [["x | y\nz"]])[2], "| x \\| y z |")


class MeasuredPrograms(unittest.TestCase):
    def test_pytorch_that_cannot_be_loaded_is_absent(self):
        for script, words in (("programs/pytorch_step.py", ["--inputs", "/nonexistent"]), ("programs/pytorch_ops.py", [])):
            status, said, _ = run(script, *words, fake="libraries")
            self.assertEqual((status, said.split("\t")[0]), (0, "absent"))
            self.assertIn("libcudart.so.13: cannot open", said)

    def test_a_later_failure_is_an_error_in_one_line(self):
        """PyTorch's last line is often advice. dp_bench shows the last line unless a program reports the reason."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "torch").mkdir()
            (pathlib.Path(folder) / "torch/__init__.py").write_text(
                "import types, sys\n__path__ = []\n"
                "for name in ('nn', 'nn.functional'):\n    sys.modules['torch.' + name] = types.ModuleType(name)\n"
                "nn = sys.modules['torch.nn']; nn.Module = object; nn.functional = sys.modules['torch.nn.functional']\n"
                "float32 = bfloat16 = float16 = None\n"
                "def set_num_threads(n):\n    raise RuntimeError('out of luck\\nfor this reason\\n\\nSet TORCH_LOGS=+dynamo')\n")
            for script, words in (("programs/pytorch_step.py", ["--inputs", "/nonexistent"]), ("programs/pytorch_ops.py", [])):
                status, said, errors = run(script, *words, path=folder)
                self.assertEqual(said, "error\tmessage=RuntimeError: out of luck for this reason Set TORCH_LOGS=+dynamo\n")
                self.assertEqual(status, 1)
                self.assertIn("Traceback", errors)


if __name__ == "__main__":
    unittest.main()
