"""The programs of hour.sh: train, resume, predict and export, with arrays; compare with PyTorch."""

import pathlib
import signal
import sys

import numpy as np

import dp


def shapes(count, seed):
    """Squares and crosses of three colours, six classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 6, count, dtype=np.int32)
    images = random.integers(0, 80, (count, 3, 32, 32), dtype=np.uint8)
    for image, label in zip(images, labels):
        top, left = random.integers(0, 20, 2)
        box = image[label % 3, top : top + 12, left : left + 12]
        if label < 3:
            box[2:10, 2:10] += 150
        else:
            box[5:7, :] += 150
            box[:, 5:7] += 150
    return images, labels


def data():
    arrays = [dp.datasets.from_arrays(*shapes(count, seed), mean=[0.2] * 3, std=[0.25] * 3,
                                      class_names=["red square", "green square", "blue square", "red cross",
                                                   "green cross", "blue cross"])
              for count, seed in ((2000, 1), (400, 2))]
    return tuple(arrays)


def network():
    b = dp.ModelBuilder("shapes", (3, 32, 32))
    x = b.input()
    for stage, channels in enumerate((16, 32)):
        x = b.conv2d(f"conv{stage}", x, channels, 3, padding=1, bias=False)
        x = b.max_pool2d(b.relu(b.batch_norm2d(f"bn{stage}", x)), 2)
    return b.build(b.linear("fc", b.flatten(b.global_avg_pool2d(x)), 6))


def train(folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & makes programs ignore it
    trainer = dp.Trainer(network(), data(), devices=["cpu", "cpu"], epochs=1000, batch_size=64, lr=0.1,
                         output_dir=folder, print_freq=20)
    try:
        trainer.run(on_step=lambda report: report.step > 20 and pathlib.Path("started").touch())
    except KeyboardInterrupt:
        summary = trainer.summary
        print(f"interrupted after {summary.steps} steps; saved in {summary.checkpoint}")
        sys.exit(130 if summary.interrupted and summary.checkpoint else 1)


def resume(folder):
    trainer = dp.Trainer(network(), data(), devices=["cpu", "cpu"], resume=folder, output_dir=folder, epochs=10)
    steps = []
    summary = trainer.run(on_step=lambda report: steps.append(report.step))
    print(summary)
    assert steps[0] > 20, "the run did not continue"
    assert summary.end == "complete" and summary.top1 > 90, summary.to_json()


def predict(folder):
    predictor = dp.Predictor(dp.read_trained_model(folder), ["cpu", "cpu"])
    images, labels = shapes(300, 3)
    outputs = predictor.predict(images)
    right = (outputs.argmax(1) == labels).mean()
    print("right:", right, "first:", predictor.top(outputs[0], 2))
    assert right > 0.85
    np.save("outputs.npy", outputs)


def export(folder):
    trained = dp.read_trained_model(folder)
    dp.write_safetensors("weights.safetensors", trained.weights)
    dp.write_onnx("net.onnx", trained, fold_batch_norm=True, dynamic_batch=True)
    outputs = dp.Predictor(dp.from_onnx("net.onnx")).predict(shapes(300, 3)[0])
    np.testing.assert_allclose(outputs, np.load("outputs.npy"), atol=1e-4)


def compare(folder):
    """PyTorch with the exported weights, and onnxruntime, if it is installed, with the exported network."""
    import torch
    from torch import nn

    layers = {}
    for stage, channels in enumerate(((3, 16), (16, 32))):
        layers[f"conv{stage}"] = nn.Conv2d(*channels, 3, padding=1, bias=False)
        layers[f"bn{stage}"] = nn.BatchNorm2d(channels[1])
        layers |= {f"relu{stage}": nn.ReLU(), f"pool{stage}": nn.MaxPool2d(2)}
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(32, 6)}
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    weights = dp.read_safetensors("weights.safetensors")
    net.load_state_dict({name: torch.from_dlpack(weight) for name, weight in weights.items()}, strict=True)
    images = (shapes(300, 3)[0] / np.float32(255) - np.float32(0.2)) / np.float32(0.25)
    with torch.no_grad():
        outputs = net.eval()(torch.from_numpy(images)).numpy()
    expected = np.load("outputs.npy")
    print("largest difference from PyTorch:", np.abs(outputs - expected).max())
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    try:
        import onnxruntime
    except ImportError:
        print("left out: onnxruntime is not installed")
        return
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"input": images})[0], expected, atol=1e-4)


if __name__ == "__main__":
    {name: globals()[name] for name in ("train", "resume", "predict", "export", "compare")}[sys.argv[1]](sys.argv[2])
