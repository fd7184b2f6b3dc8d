"""ModelBuilder, DataParallel, arrays in and out, errors, options."""

import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

import dp

TWO = ["cpu", "cpu"]
random = np.random.default_rng(1)


def small_net():
    b = dp.ModelBuilder("small", (3, 8, 8))
    x = b.conv2d("conv1", b.input(), 8, 3, padding="same", bias=False)
    x = b.relu(b.batch_norm2d("bn1", x))
    y = b.conv2d("conv2", x, 8, kernel_size=(1, 3), padding=(0, 1))
    x = b.activation(b.add(x, y), "leaky_relu", negative_slope=0.2)
    x = b.flatten(b.global_avg_pool2d(x))
    return b.build(b.linear("fc", x, 10))


def batch(size=8, shape=(3, 8, 8), classes=10):
    return random.standard_normal((size, *shape), dtype=np.float32), random.integers(0, classes, size, dtype=np.int32)


class Builder(unittest.TestCase):
    def test_shapes_and_names(self):
        model = small_net()
        self.assertEqual((model.input, model.output), ((3, 8, 8), (10,)))
        self.assertEqual(model.parameters["conv2.weight"], (8, 8, 1, 3))
        self.assertEqual(dp.model_to_json(dp.model_from_json(dp.model_to_json(model))), dp.model_to_json(model))

    def test_every_layer(self):
        b = dp.ModelBuilder("all", (4, 8, 8))
        x = b.conv_transpose2d("up", b.input(), 8, 2, stride=2)
        x = b.group_norm("gn", x, 2)
        x = b.instance_norm2d("in", b.layer_norm("ln", x), affine=True)
        x = b.scale("scale", b.prelu("prelu", x, 8), 0.5)
        x = b.multiply(x, b.activation(b.conv2d("gate", b.global_avg_pool2d(x), 8, 1), "sigmoid"))
        x = b.channel_shuffle(b.concat([b.slice(x, 0, 4), b.slice(x, 4, 4)]), 2)
        x = b.subtract(b.max_pool2d(x, 3, 2, 1), b.avg_pool2d(x, 2))
        x = b.upsample(b.zero_pad2d(x, (1, 1, 0, 0)), scale_factor=2, mode="bilinear")
        x = b.dropout2d("d2", b.stochastic_depth("sd", b.pointwise_linear("pw", x, 6, init=("normal", 0.01)), 0.1))
        x = b.adaptive_avg_pool2d(b.softmax(x), (2, 1))
        x = b.dropout("d", b.reshape(x, [-1]))
        model = b.build(b.linear("fc", x, 3))
        net = dp.DataParallel(model, TWO)
        net.train_step(*batch(4, (4, 8, 8), 3), dp.Sgd(0.1))
        self.assertEqual(net.predict(batch(5, (4, 8, 8))[0]).shape, (5, 3))

    def test_errors_name_the_layer(self):
        b = dp.ModelBuilder("wrong", (3, 8, 8))
        with self.assertRaisesRegex(dp.UsageError, "conv1"):
            b.conv2d("conv1", b.input(), 8, 11)
        with self.assertRaisesRegex(dp.UsageError, "leaky"):
            b.activation(b.input(), "leaky")
        b.build(b.relu(b.input()))
        with self.assertRaisesRegex(dp.UsageError, "built already"):
            b.input()

    def test_registry(self):
        self.assertIn("resnet18", dp.models.names())
        self.assertEqual(dp.models.resnet18(classes=7, width=8).output, (7,))
        self.assertEqual(dp.models.make("mlp", (1, 4, 4), 3).input, (1, 4, 4))
        for name in dp.models.names():
            self.assertTrue(callable(getattr(dp.models, name)), name)


class Steps(unittest.TestCase):
    def test_one_by_one_equals_the_fused_step(self):
        one, fused = (dp.DataParallel(small_net(), TWO, seed=3) for _ in range(2))
        sgd = dp.Sgd(lr=0.1, momentum=0.9, weight_decay=1e-4)
        for _ in range(3):
            images, labels = batch()
            value, grad = dp.cross_entropy(one(images), labels)
            one.backward(grad)
            one.step(sgd)
            fused.train_step(images, labels, sgd)
            self.assertAlmostEqual(value, fused.take_stats().loss, places=5)
        for name, weight in one.state_dict().items():
            np.testing.assert_allclose(weight, fused.state_dict()[name], atol=1e-6, err_msg=name)
        self.assertTrue(one.replicas_identical())
        self.assertEqual(len(one), 2)

    def test_evaluate_and_predict(self):
        net = dp.DataParallel(small_net(), TWO)
        images, labels = batch(9)
        net.evaluate(images, labels)
        stats = net.take_stats()
        outputs = net.predict(images)
        self.assertEqual(stats.samples, 9)
        self.assertAlmostEqual(stats.loss, dp.cross_entropy(outputs, labels)[0], places=5)
        self.assertAlmostEqual(stats.accuracy1, 100 * np.mean(outputs.argmax(1) == labels), places=4)
        again = net.predict(images[:3])  # the arrays are copies: the next call does not change them
        np.testing.assert_allclose(outputs[:3], again, atol=1e-5)

    def test_optimizers(self):
        images, labels = batch()
        for make in (dp.Sgd, dp.Adam, dp.AdamW, dp.Lion, dp.RmsProp, dp.Lamb, dp.Muon):
            net = dp.DataParallel(small_net(), TWO)
            before = net.state_dict()["fc.weight"]
            net.train_step(images, labels, make(lr=0.01))
            self.assertGreater(np.abs(net.state_dict()["fc.weight"] - before).max(), 0, make)
        state = net.optimizer_state()
        self.assertEqual((state["optimizer"], state["updates"]), ("muon", 1))
        net.load_optimizer_state(state)
        self.assertEqual(dp.AdamW(betas=(0.8, 0.9)).betas, (0.8, 0.9))
        self.assertAlmostEqual(dp.Schedule("step", step_size=2, gamma=0.1).rate(1.0, 2.0), 0.1)

    def test_own_loss_and_targets(self):
        def mean_square(outputs, targets):
            away = outputs - targets
            return float((away**2).mean()), (2 * away / away.size).astype(np.float32)

        images, targets = batch()[0], random.standard_normal((8, 10), dtype=np.float32)
        own = dp.DataParallel(small_net(), TWO, own_loss=mean_square)
        built_in = dp.DataParallel(small_net(), TWO, output_loss="mse")
        for net in (own, built_in):
            net.train_step(images, targets, dp.Sgd(0.1))
        np.testing.assert_allclose(own.state_dict()["fc.weight"], built_in.state_dict()["fc.weight"], atol=1e-6)

    def test_frozen_parameters(self):
        net = dp.DataParallel(small_net(), TWO, parameter_groups=[dp.ParameterGroup("conv1.*", frozen=True)])
        before = net.state_dict()
        net.train_step(*batch(), dp.Sgd(0.1))
        after = net.state_dict()
        np.testing.assert_array_equal(before["conv1.weight"], after["conv1.weight"])
        self.assertGreater(np.abs(before["conv2.weight"] - after["conv2.weight"]).max(), 0)


class State(unittest.TestCase):
    def test_round_trip(self):
        net, other = (dp.DataParallel(small_net(), TWO, seed=seed) for seed in (1, 2))
        net.train_step(*batch(), dp.Sgd(0.1))
        state = net.state_dict()
        self.assertEqual(state["bn1.num_batches_tracked"].dtype, np.int64)
        self.assertEqual(int(state["bn1.num_batches_tracked"]), 1)
        other.load_state_dict(state)
        self.assertEqual(dp.weights_sha256(other.state_dict()), dp.weights_sha256(state))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "weights.safetensors"
            dp.write_safetensors(path, state)
            self.assertEqual(dp.weights_sha256(dp.read_safetensors(path)), dp.weights_sha256(state))

    def test_strict(self):
        net = dp.DataParallel(small_net(), TWO)
        state = net.state_dict()
        del state["fc.bias"]
        with self.assertRaisesRegex(dp.DataError, "fc.bias"):
            net.load_state_dict(state)
        self.assertIn("fc.bias", " ".join(net.load_state_dict(state, strict=False)))

    def test_arrays_outlive_the_network(self):
        state = dp.DataParallel(small_net(), TWO).state_dict()
        total = sum(float(np.abs(weight).sum()) for weight in state.values())
        self.assertTrue(np.isfinite(total))
        self.assertTrue(state["fc.weight"].flags.writeable)
        self.assertFalse(state["fc.weight"].flags.owndata)  # it shares the engine's copy


class Arrays(unittest.TestCase):
    def test_dlpack(self):
        net = dp.DataParallel(small_net(), TWO)
        weight = net.state_dict()["fc.weight"]
        again = np.from_dlpack(weight)
        self.assertEqual(again.ctypes.data, weight.ctypes.data)

    def test_layouts_and_types(self):
        net = dp.DataParallel(small_net(), TWO)
        images, labels = batch()
        expected = net.predict(images)
        np.testing.assert_array_equal(net.predict(images.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)), expected)
        np.testing.assert_array_equal(net.predict(images.astype(np.float64)), expected)
        net.train_step(images, labels.astype(np.int64), dp.Sgd(0.1))
        with self.assertRaises(dp.UsageError):
            net.train_step(images, labels.astype(np.float32), dp.Sgd(0.1))
        with self.assertRaises(TypeError):
            net.predict("images")


class Options(unittest.TestCase):
    def test_names_and_values(self):
        net = dp.DataParallel(small_net(), TWO, reduce="master", bn="sync", dropout=False, split=[3, 1],
                              clip_grad_norm=1, label_smoothing=0.1, seed=2**63)
        net.train_step(*batch(), dp.Sgd(0.1))
        self.assertEqual(net.devices, TWO)

    def test_refused(self):
        for options, text in ((dict(reduce="nowhere"), "reduce"), (dict(redce="master"), "redce"),
                              (dict(label_smoothing=1.5), "label_smoothing"), (dict(split="auto"), "measure_split"),
                              (dict(devices=["gpu"]), "gpu"), (dict(epochs=3), "epochs"), (dict(bn=7), "bn")):
            with self.assertRaisesRegex(dp.UsageError, text):
                dp.DataParallel(small_net(), **({"devices": TWO} | options))

    def test_help(self):
        self.assertIn("clip_grad_norm", dp._describe_options(False))
        self.assertNotIn("epochs", dp._describe_options(False))
        self.assertIn("augment: False", dp._describe_options(True))


class Exit(unittest.TestCase):
    def test_objects_that_are_alive_at_the_end(self):
        program = """
import numpy as np, dp
class Slow(dp.Dataset):
    def __len__(self): return 1000
    def label(self, index): return 0
    def __getitem__(self, index): return np.zeros((1, 8, 8), np.uint8), 0
net = dp.DataParallel(dp.models.mlp(input=(1, 8, 8)), ["cpu", "cpu"], own_loss=lambda y, t: (0.0, np.zeros_like(y)))
images = np.zeros((4, 1, 8, 8), np.float32)
net.forward(images)
net.train_step(images, np.zeros(4, np.int32), dp.Sgd())
loader = dp.Loader(Slow((1, 8, 8), 2), batch_size=8, workers=4)
next(iter(loader.epoch(0)))
data = Slow((1, 8, 8), 2)
trainer = dp.Trainer(dp.models.mlp(input=(1, 8, 8), classes=2), (data, data), devices=["cpu"], dry_run=True)
trainer.run(progress=False)
"""
        for _ in range(3):
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
            self.assertEqual((done.returncode, done.stderr), (0, ""))


class Errors(unittest.TestCase):
    def test_kinds(self):
        net = dp.DataParallel(small_net(), TWO)
        with self.assertRaises(dp.UsageError) as caught:
            net.predict(batch(2, (1, 8, 8))[0])
        self.assertEqual((caught.exception.code, caught.exception.exit_code), ("usage", 2))
        self.assertIsInstance(caught.exception, ValueError)
        self.assertIsInstance(caught.exception, dp.Error)
        with self.assertRaises(dp.DataError):
            dp.datasets.mnist("/nowhere")
        with self.assertRaises(dp.DeviceError):
            dp.DataParallel(small_net(), ["cuda:99"])
        images, labels = batch()
        images[0] = np.nan
        with self.assertRaises(dp.NonfiniteError) as caught:
            net.train_step(images, labels, dp.Sgd(0.1))
            net.take_stats()
        self.assertIsInstance(caught.exception, ArithmeticError)

    def test_one_thread_at_a_time(self):
        inside, left = threading.Event(), threading.Event()

        def loss(outputs, labels):
            inside.set()
            left.wait(10)
            return 0.0, np.zeros_like(outputs)

        net = dp.DataParallel(small_net(), TWO, own_loss=loss)
        step = threading.Thread(target=lambda: net.train_step(*batch(), dp.Sgd(0.1)))
        step.start()
        inside.wait(10)
        with self.assertRaisesRegex(dp.UsageError, "another thread"):
            net.take_stats()
        left.set()
        step.join()
        net.take_stats()


class Threads(unittest.TestCase):
    def test_the_interpreter_runs_during_steps(self):
        net = dp.DataParallel(dp.models.resnet18(width=16), TWO)
        images, labels = batch(64, (3, 32, 32))
        net.train_step(images, labels, dp.Sgd(0.01))
        counted, inside, stop = [0, 0], [False], threading.Event()

        def count():
            while not stop.is_set():
                counted[inside[0]] += 1
                stop.wait(0.0005)

        counter = threading.Thread(target=count)
        counter.start()
        inside[0] = True
        for _ in range(3):  # each holds the calling thread for several milliseconds
            net.train_step(images, labels, dp.Sgd(0.01))
        inside[0] = False
        stop.set()
        counter.join()
        self.assertGreater(counted[True], 3)

    def test_signals_stay_on_pythons_threads(self):
        net = dp.DataParallel(small_net(), ["cpu"])
        net.train_step(*batch(), dp.Sgd(0.1))
        unblocked = 0
        for task in pathlib.Path("/proc/self/task").iterdir():
            blocked = next(line for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk"))
            unblocked += not int(blocked.split()[1], 16) & 2  # SIGINT is bit 1
        self.assertEqual(unblocked, threading.active_count() + self.threads_of_numpy())

    @staticmethod
    def threads_of_numpy():
        """Threads of numpy's BLAS, which do not block signals."""
        program = "import numpy, os; print(len(os.listdir('/proc/self/task')) - 1)"
        return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    unittest.main()
