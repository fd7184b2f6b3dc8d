"""Tests ./dev bench. A script that only prints something, or measures PyTorch only, needs no build. Everything else is
built for the GPUs of this host. A fake cmake records its arguments. Argument: the source folder."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)
        cmake = self.home / "cmake"
        cmake.write_text(f'#!/bin/sh\necho "$*" >>{self.home}/asked\nexit 9\n')
        cmake.chmod(0o755)

    def tearDown(self):
        self.folder.cleanup()

    def bench(self, *words):
        """(status, output, the arguments of cmake)"""
        (self.home / "asked").write_text("")
        environment = {**os.environ, "PATH": f"{self.home}:{os.environ['PATH']}", "DP_SKIP_DEPS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": str(pathlib.Path(__file__).resolve().parent / "fake_torch"), "FAKE_TORCH": "no-gpu"}
        done = subprocess.run([SOURCE / "dev", "bench", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=environment, timeout=120, check=False)
        return done.returncode, done.stdout, (self.home / "asked").read_text()

    def test_lists_and_help_need_no_build(self):
        for words, said in ((("gpu", "--list"), "dp_bench step"), (("gpu", "--quick", "--list"), "--amp-dtype bfloat16"), (("gpu", "--help"), "--quick"),
                            (("gpu", "-h"), "--quick"), (("gpu_first", "--list"), "7x7, stride 2"), (("gpu_first", "--help"), "--batches")):
            status, output, asked = self.bench(*words)
            self.assertEqual((status, asked), (0, ""), words)
            self.assertIn(said, output)

    def test_pytorch_alone_needs_no_build(self):
        status, output, asked = self.bench("gpu_first", "--out", str(self.home / "out"))
        self.assertEqual((status, asked), (1, ""))
        self.assertIn("PyTorch finds no GPU", output)

    def test_measurements_of_our_programs_are_built_for_the_gpus_present(self):
        for words in (("gpu", "--quick"), ("dp_bench", "--help"), ()):
            status, _, asked = self.bench(*words)
            self.assertNotEqual(status, 0, words)
            self.assertRegex(asked, r"-B build/bench .*-DDP_CUDA_ARCHITECTURES=(native|90)\b")


if __name__ == "__main__":
    unittest.main()
