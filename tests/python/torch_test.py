"""Beside PyTorch: tensors in and out, a step, nn.DataParallel's script. Skipped without torch."""

import tempfile
import unittest
import warnings

import numpy as np

import dp

try:
    import torch
    import torchvision
except ImportError:
    raise unittest.SkipTest("torch or torchvision is not installed") from None

TWO = ["cpu", "cpu"]


class Torch(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.images, self.labels = torch.randn(12, 3, 64, 64), torch.randint(0, 10, (12,))
        torch.manual_seed(2)

    def pair(self, **options):
        theirs = torchvision.models.resnet18(num_classes=10)
        ours = dp.DataParallel(dp.models.resnet18(10, input=(3, 64, 64), stem="imagenet"), TWO, **options)
        ours.load_state_dict(theirs.state_dict())
        return theirs, ours

    def test_tensors(self):
        theirs, ours = self.pair()
        self.assertEqual(list(ours.state_dict()), list(theirs.state_dict()))
        theirs.eval()
        with torch.no_grad():
            expected = theirs(self.images)
        outputs = torch.from_dlpack(ours.predict(self.images))
        torch.testing.assert_close(outputs, expected, atol=1e-4, rtol=1e-4)
        state = ours.state_dict()
        shared = {name: torch.from_dlpack(weight) for name, weight in state.items()}
        self.assertEqual(shared["fc.weight"].data_ptr(), state["fc.weight"].ctypes.data)
        theirs.load_state_dict(shared, strict=True)
        ours.load_state_dict({name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight
                              for name, weight in theirs.state_dict().items()})
        np.testing.assert_array_equal(ours.state_dict()["fc.weight"],
                                      theirs.fc.weight.detach().to(torch.bfloat16).float().numpy())

    def test_steps(self):
        theirs, ours = self.pair(bn="sync")  # as one device
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        sgd = dp.Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4)
        theirs.train()
        for step in range(3):
            loss = torch.nn.functional.cross_entropy(theirs(self.images), self.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ours.train_step(self.images, self.labels, sgd)
            self.assertAlmostEqual(ours.take_stats().loss, loss.item(), delta=1e-5 if step == 0 else 1e-2)
            if step == 0:  # later steps depend on the last bits: a ReLU is on one side of zero or on the other
                state = {name: value.numpy().copy() for name, value in theirs.state_dict().items()}
                for name, weight in ours.state_dict().items():
                    np.testing.assert_allclose(weight, state[name], atol=1e-4, err_msg=name)

    def test_the_four_calls(self):
        theirs, ours = self.pair(bn="sync")
        logits = torch.from_dlpack(ours(self.images)).requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits, self.labels)  # any loss of PyTorch
        loss.backward()
        ours.backward(logits.grad)
        theirs.train()
        torch.nn.functional.cross_entropy(theirs(self.images), self.labels).backward()
        gradients = ours.gradients()
        error = sum(float(((parameter.grad.numpy() - gradients[name]) ** 2).sum())
                    for name, parameter in theirs.named_parameters())
        norm = sum(float((parameter.grad**2).sum()) for parameter in theirs.parameters())
        self.assertLess((error / norm) ** 0.5, 1e-4)  # measured: 3e-6

    def test_layouts_and_gradients_of_inputs(self):
        _, ours = self.pair()
        expected = ours.predict(self.images)
        np.testing.assert_array_equal(ours.predict(self.images.clone().requires_grad_()), expected)
        np.testing.assert_array_equal(ours.predict(self.images.to(memory_format=torch.channels_last)), expected)

    def test_onnx(self):
        theirs = torchvision.models.mobilenet_v2(num_classes=10)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, dozens
            torch.onnx.export(theirs.train(), (self.images,), folder + "/net.onnx", dynamo=False, opset_version=17,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
            try:
                network = dp.from_onnx(folder + "/net.onnx")
            except dp.UsageError as error:
                self.skipTest(str(error))
            with torch.no_grad():
                expected = theirs.eval()(self.images).numpy()
            torch.save(theirs.state_dict(), folder + "/net.pth")
            weights = dp.read_torch_file(folder + "/net.pth")
        ours = dp.Predictor(network, TWO)
        np.testing.assert_allclose(ours.predict(self.images), expected, atol=1e-4)
        self.assertEqual(weights.keys(), network.weights.keys())

    def test_a_data_set_of_torch(self):
        images, labels = torch.randint(0, 255, (64, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 10, (64,))
        data = dp.datasets.from_sequence(torch.utils.data.TensorDataset(images, labels), labels)
        np.testing.assert_array_equal(data[5][0], images[5].numpy())
        run = dp.Trainer(dp.models.resnet18(width=8), (data, data), devices=TWO, epochs=1, batch_size=16)
        self.assertEqual(run.run(progress=False).steps, 4)


if __name__ == "__main__":
    unittest.main()
