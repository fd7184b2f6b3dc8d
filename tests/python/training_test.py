"""Trainer: data sets, callbacks, Ctrl-C, resuming, progress."""

import contextlib
import io
import os
import pathlib
import signal
import struct
import tempfile
import threading
import time
import types
import unittest
import unittest.mock
import zlib

import numpy as np

import dp

TWO = ["cpu", "cpu"]


def stripes(count, seed):
    """Images of ten classes that a small network learns: class c has bright rows from c on."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count, dtype=np.int32)
    images = random.integers(0, 90, (count, 1, 12, 12), dtype=np.uint8)
    for image, label in zip(images, labels):
        image[0, label : label + 2] += 150
    return images, labels


def png(image):
    """A file of a grey image."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


TRAIN, TEST = stripes(600, 1), stripes(200, 2)


def mlp():
    return dp.models.mlp(10, input=(1, 12, 12), hidden=[32])


def trainer(data=(TRAIN, TEST), model=None, **options):
    return dp.Trainer(model or mlp(), data, **{"devices": TWO, "epochs": 2, "batch_size": 50, "lr": 0.1} | options)


class Listed:
    """A sequence as torchvision has them."""

    def __init__(self, images, labels, has_targets=True):
        self.images = images
        if has_targets:
            self.targets = labels.tolist()
        self.labels_read = labels
        self.threads = set()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.threads.add(threading.get_ident())
        return self.images[index], self.labels_read[index]


class Own(dp.Dataset):
    def __init__(self, images, labels):
        super().__init__((1, 12, 12), 10, class_names=list("abcdefghij"), mean=[0.3], std=[0.2])
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])


class Data(unittest.TestCase):
    def weights(self, data, **options):
        run = trainer(data, **options)
        summary = run.run(progress=False)
        self.assertEqual((summary.steps, summary.end), (24, "complete"))
        return summary.weights_sha256

    def test_all_kinds_of_data_train_alike(self):
        expected = self.weights((TRAIN, TEST))
        listed = Listed(*TRAIN)
        self.assertEqual(self.weights((listed, TEST)), expected)
        self.assertGreater(len(listed.threads - {threading.get_ident()}), 0)  # those of the loader
        self.assertEqual(self.weights((Listed(*TRAIN, has_targets=False), Listed(*TEST))), expected)
        self.assertEqual(self.weights((dp.datasets.from_iterable(zip(*TRAIN)), TEST)), expected)

    def test_own_class(self):
        run = trainer((Own(*TRAIN), Own(*TEST)), epochs=5)
        self.assertGreater(run.run(progress=False).top1, 60)
        self.assertEqual(Own(*TRAIN).class_names[2], "c")

    def test_arrays(self):
        data = dp.datasets.from_arrays(*TRAIN, mean=[0.3], std=[0.2])
        self.assertEqual((len(data), data.image_shape, data.classes), (600, (1, 12, 12), 10))
        image, label = data[-1]
        np.testing.assert_array_equal(image, TRAIN[0][-1])
        self.assertEqual(label, TRAIN[1][-1])
        faults, mean, _ = data.check()
        self.assertEqual(faults, [])
        self.assertAlmostEqual(mean[0], TRAIN[0].mean() / 255, places=4)
        for wrong in (lambda: dp.datasets.from_arrays(TRAIN[0], TRAIN[1][:-1]),
                      lambda: dp.datasets.from_arrays(TRAIN[0][0], TRAIN[1]),
                      lambda: dp.datasets.from_arrays(*TRAIN, classes=3),
                      lambda: dp.datasets.from_arrays(*TRAIN, mean=[0, 0, 0])):
            self.assertRaises(dp.UsageError, wrong)
        with self.assertRaises(IndexError):
            data[600]

    def test_targets_and_weights(self):
        targets = np.stack([TRAIN[1], TRAIN[1] ** 2], axis=1).astype(np.float32)
        data = dp.datasets.from_arrays(TRAIN[0], targets=targets, weights=np.ones(600, np.float32))
        run = trainer((data, data), dp.models.mlp(2, input=(1, 12, 12)), output_loss="mse", lr=1e-4,
                      sample_weights=True)
        self.assertIn("rmse", run.run(progress=False).metrics)

    def test_errors_of_a_data_set(self):
        class Broken(Own):
            def __getitem__(self, index):
                if index == 77:
                    raise KeyError("sample 77")
                return super().__getitem__(index)

        with self.assertRaisesRegex(KeyError, "sample 77"):
            trainer((Broken(*TRAIN), TEST), dataset="broken").run(progress=False)

        class WrongShape(Own):
            def __getitem__(self, index):
                return np.zeros((12, 12, 1), np.uint8), 0

        with self.assertRaisesRegex(dp.UsageError, "sample"):
            trainer((WrongShape(*TRAIN), TEST)).run(progress=False)

        class Nothing(dp.Dataset):
            pass

        with self.assertRaisesRegex(TypeError, "__len__"):
            len(Nothing((1, 2, 2), 2))
        with self.assertRaisesRegex(dp.UsageError, "pair"):
            trainer(TRAIN)

    def test_loader(self):
        loader = dp.Loader(Own(*TRAIN), batch_size=128, seed=1)
        net = dp.DataParallel(mlp(), TWO)
        seen = []
        for batch in loader.epoch(0):
            seen.extend(batch.samples)
            net.train_step(batch, dp.Sgd(0.1))
        self.assertEqual(sorted(seen), list(range(600)))
        self.assertEqual(net.take_stats().samples, 600)
        first = next(iter(loader.epoch(1)))
        image = TRAIN[0][first.samples[0]]
        np.testing.assert_allclose(first.images[0], (image / 255 - 0.3) / 0.2, atol=1e-5)
        self.assertEqual(first.labels[0], TRAIN[1][first.samples[0]])
        del loader  # in the middle of an epoch

    def test_split_off(self):
        train, test = dp.datasets.split_off(dp.datasets.from_arrays(*TRAIN), 0.1)
        self.assertEqual(len(train) + len(test), 600)
        digits = dp.datasets.digits(100, 10)
        self.assertEqual([len(part) for part in digits], [100, 10])


class Callbacks(unittest.TestCase):
    def test_reports(self):
        seen, threads = [], set()

        def keep(name):
            def call(report):
                threads.add(threading.get_ident())
                seen.append((name, report))

            return call

        names = ("on_start", "on_step", "on_eval", "on_epoch", "on_checkpoint", "on_message", "on_work")
        with tempfile.TemporaryDirectory() as folder:
            run = trainer(output_dir=pathlib.Path(folder) / "run", print_freq=5,
                          metrics={"mean_output": lambda outputs, labels: outputs.mean()})
            summary = run.run(progress=False, **{name: keep(name) for name in names})
            reports = {name: [report for other, report in seen if other == name] for name in names}
            self.assertEqual([report.epoch for report in reports["on_epoch"]], [0, 1])
            self.assertTrue(all(pathlib.Path(path).is_dir() for path in reports["on_checkpoint"][-1:]))
        self.assertEqual(threads, {threading.get_ident()})
        self.assertEqual(reports["on_step"][0].batches, 12)
        self.assertGreater(reports["on_step"][0].recent.loss, 0)
        self.assertIn("mean_output", reports["on_eval"][-1].metrics)
        self.assertEqual(reports["on_epoch"][-1].test.stats.samples, 200)
        self.assertEqual(summary.top1, reports["on_epoch"][-1].test.stats.accuracy1)
        self.assertIn('"steps":24', summary.to_json().replace(" ", ""))

    def test_the_network_within_a_callback(self):
        states = []
        run = trainer()
        summary = run.run(progress=False, on_epoch=lambda report: states.append(run.net.state_dict()))
        self.assertEqual(dp.weights_sha256(states[-1]), summary.weights_sha256)

    def test_an_exception_ends_the_run(self):
        def fail(report):
            raise LookupError("enough")

        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(LookupError, "enough"):
                trainer(output_dir=folder + "/run").run(progress=False, on_epoch=fail)
            self.assertEqual(dp.read_trained_model(folder + "/run").model.name, "mlp")

    def test_stop_and_finish(self):
        run = trainer(epochs=50, print_freq=1)
        summary = run.run(progress=False, on_step=lambda report: run.stop() if report.step >= 5 else None)
        self.assertTrue(summary.interrupted)
        run = trainer(epochs=50, print_freq=1)
        summary = run.run(progress=False, on_step=lambda report: run.finish() if report.step >= 5 else None)
        self.assertLess(summary.steps, 12)
        self.assertFalse(np.isnan(summary.top1))


class Interrupts(unittest.TestCase):
    def test_ctrl_c_saves_and_resumes(self):
        with tempfile.TemporaryDirectory() as folder:
            whole = trainer(epochs=30, output_dir=folder + "/whole").run(progress=False)
            run = trainer(epochs=30, output_dir=folder + "/run")
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
            with self.assertRaises(KeyboardInterrupt):
                run.run(progress=False, on_start=lambda net: timer.start())
                time.sleep(120)  # a fast machine: the signal comes after the run
            if run.summary.interrupted:
                self.assertLess(run.summary.steps, whole.steps)
            resumed = dp.Trainer(mlp(), (TRAIN, TEST), devices=TWO, resume=folder + "/run", output_dir=folder + "/run")
            self.assertEqual(resumed.run(progress=False).weights_sha256, whole.weights_sha256)

    def test_ctrl_c_between_steps(self):
        net = dp.DataParallel(mlp(), TWO)
        images = TRAIN[0][:64] / np.float32(255)
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            while True:
                net.train_step(images, TRAIN[1][:64], dp.Sgd(0.1))
        net.train_step(images, TRAIN[1][:64], dp.Sgd(0.1))  # the object is intact
        self.assertTrue(net.replicas_identical())

    def test_other_signals(self):
        class Ended(Exception):
            pass

        def raise_ended(*_):
            raise Ended

        before = signal.signal(signal.SIGUSR1, raise_ended)
        try:
            run = trainer(epochs=100000)
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            with self.assertRaises(Ended):
                run.run(progress=False, on_start=lambda net: timer.start())
            self.assertTrue(run.summary.interrupted)
        finally:
            signal.signal(signal.SIGUSR1, before)


class Options(unittest.TestCase):
    def test_objects_and_names(self):
        by_name = trainer(optimizer="adamw", lr=0.01, lr_scheduler="step", lr_step_size=1)
        by_object = trainer(optimizer=dp.AdamW(0.01, weight_decay=0.01), lr=None,
                            schedule=dp.Schedule("step", step_size=1))
        self.assertEqual(by_name.run(progress=False).weights_sha256, by_object.run(progress=False).weights_sha256)

    def test_first_weights_and_init(self):
        weights = dp.DataParallel(mlp(), TWO, seed=9).state_dict()
        with tempfile.TemporaryDirectory() as folder:
            dp.write_safetensors(folder + "/w", weights)
            run = trainer(init=folder + "/w")
            self.assertEqual(run.evaluate().weights_sha256, dp.weights_sha256(weights))
        first = []
        trainer(first_weights=weights).run(progress=False, on_start=lambda net: first.append(net.state_dict()))
        self.assertEqual(dp.weights_sha256(first[0]), dp.weights_sha256(weights))

    def test_refused(self):
        for options, text in ((dict(epoch=1), "epoch"), (dict(batch_size=0), "batch_size"),
                              (dict(momentum=0.9, optimizer="adamw"), "momentum"),
                              (dict(metrics={"m": 1}), "functions")):
            with self.assertRaisesRegex(dp.UsageError, text):
                trainer(**options)


class Trained(unittest.TestCase):
    def test_read_and_predict(self):
        with tempfile.TemporaryDirectory() as folder:
            data = (Own(*TRAIN), Own(*TEST))
            run = trainer(data, epochs=5, output_dir=folder + "/run", bn="sync")
            summary = run.run(progress=False)
            trained = dp.read_trained_model(folder + "/run", "last_step")
            self.assertEqual(trained.classes, list("abcdefghij"))
            np.testing.assert_allclose((trained.mean, trained.std), ([0.3], [0.2]), atol=1e-6)
            predictor = dp.Predictor(trained, TWO)
            outputs = predictor.predict(TEST[0])
            self.assertAlmostEqual(100 * np.mean(outputs.argmax(1) == TEST[1]), summary.top1, places=4)
            images = ((TEST[0] / 255 - trained.mean[0]) / trained.std[0]).astype(np.float32)
            np.testing.assert_allclose(predictor.predict(images), outputs, atol=1e-5)
            name, probability = predictor.top(outputs[0])[0]
            self.assertEqual(name, "abcdefghij"[outputs[0].argmax()])
            self.assertTrue(0.1 < probability <= 1)

            files = [pathlib.Path(folder, f"{index}.png") for index in range(5)]
            for file, image in zip(files, TEST[0]):
                file.write_bytes(png(image[0]))
            files[2].write_bytes(b"no image")
            np.testing.assert_allclose(predictor.predict_file(files[4]), outputs[4], atol=1e-5)
            seen = []
            predictor.predict_files(files, lambda *result: seen.append(result))
            self.assertEqual([path for path, _, _ in seen], [str(file) for file in files])
            self.assertIsNone(seen[2][1])
            self.assertIn("2.png", seen[2][2])
            np.testing.assert_allclose(seen[3][1], outputs[3], atol=1e-5)
            with self.assertRaises(ZeroDivisionError):
                predictor.predict_files(files, lambda *_: 1 / 0)

    def test_onnx(self):
        weights = dp.DataParallel(mlp(), TWO, seed=4).state_dict()
        trained = dp.TrainedModel(mlp(), weights, classes=list("abcdefghij"), mean=[0.3], std=[0.2])
        with tempfile.TemporaryDirectory() as folder:
            try:
                dp.write_onnx(folder + "/net.onnx", trained, dynamic_batch=True)
            except dp.UsageError as error:
                self.assertIn("libonnx-dev", str(error))
                self.skipTest(str(error))
            back = dp.from_onnx(folder + "/net.onnx")
            self.assertEqual((back.classes, back.model.input), (trained.classes, (1, 12, 12)))
            np.testing.assert_allclose(back.mean, [0.3], atol=1e-6)
            np.testing.assert_allclose(dp.Predictor(back, TWO).predict(TEST[0]),
                                       dp.Predictor(trained, TWO).predict(TEST[0]), atol=1e-5)
            pathlib.Path(folder, "broken.onnx").write_bytes(b"no network")
            with self.assertRaisesRegex(dp.DataError, "broken"):
                dp.from_onnx(folder + "/broken.onnx")


class ProgressLines(unittest.TestCase):
    def run_with(self, rewrite):
        file = io.StringIO()
        progress = dp.Progress(file, rewrite)
        trainer().run(progress=False, on_step=progress.on_step, on_epoch=progress.on_epoch, on_work=progress.on_work,
                      on_message=progress.on_message)
        progress.close()
        return file.getvalue()

    def test_plain_lines(self):
        lines = self.run_with(False).splitlines()
        self.assertTrue(lines[0].startswith("epoch 0  ["), lines)
        self.assertEqual(sum("train loss" in line for line in lines), 2)
        self.assertNotIn("\r", "".join(lines))

    def test_rewritten_line(self):
        text = self.run_with(True)
        self.assertIn("\repoch 1  [12/12]", text)
        self.assertEqual(text.count("\n"), 2)  # one for each epoch
        self.assertTrue(text.endswith(("\n", "\r")), repr(text[-80:]))

    def test_a_notebook_rewrites(self):
        class ZMQInteractiveShell:  # the class of IPython's notebooks
            pass

        notebook = types.SimpleNamespace(get_ipython=ZMQInteractiveShell)
        text = io.StringIO()
        with unittest.mock.patch.dict("sys.modules", IPython=notebook), contextlib.redirect_stdout(text):
            trainer().run()
        self.assertIn("\repoch 1  [12/12]", text.getvalue())


if __name__ == "__main__":
    unittest.main()
