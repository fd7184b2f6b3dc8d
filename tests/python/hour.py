"""The programs of hour.sh: train, resume and predict with arrays."""

import pathlib
import signal
import sys

import numpy as np

import dp

EPOCHS = 40


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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores SIGINT for programs that it starts with &
    trainer = dp.Trainer(network(), data(), devices=["cpu", "cpu"], epochs=EPOCHS, batch_size=64, lr=0.1,
                         output_dir=folder, print_freq=20)
    try:
        trainer.run(on_step=lambda report: pathlib.Path("started").touch())
    except KeyboardInterrupt:
        print(f"interrupted after {trainer.summary.steps} steps; saved in {trainer.summary.checkpoint}")
        sys.exit(130 if trainer.summary.interrupted and trainer.summary.checkpoint else 1)


def resume(folder):
    trainer = dp.Trainer(network(), data(), devices=["cpu", "cpu"], resume=folder, output_dir=folder, epochs=EPOCHS // 4)
    before = trainer.net.step_count
    summary = trainer.run()
    print(summary)
    assert before > 0, "the run did not continue"
    assert summary.end == "complete" and summary.top1 > 90, summary.to_json()


def predict(folder):
    trained = dp.read_trained_model(folder)
    net = dp.DataParallel(trained.model, ["cpu", "cpu"])
    net.load_state_dict(trained.weights)
    images, labels = shapes(300, 3)
    mean, std = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (trained.mean, trained.std))
    outputs = net.predict((images / np.float32(255) - mean) / std)
    print("right:", (outputs.argmax(1) == labels).mean(), "first:", trained.classes[outputs[0].argmax()])
    assert (outputs.argmax(1) == labels).mean() > 0.85


if __name__ == "__main__":
    {"train": train, "resume": resume, "predict": predict}[sys.argv[1]](sys.argv[2])
