"""A stand-in for PyTorch, for the mlp only. Answers dp_bench as benchmarks/programs/pytorch_step.py does, with the
correct first loss and invented times. Plain Python."""
import argparse
import array
import math
import struct
import sys
import time

HIDDEN = 128


def product(x, weights, biases):
    width = len(x)
    return [sum(a * b for a, b in zip(x, weights[i * width:(i + 1) * width])) + bias for i, bias in enumerate(biases)]


def first_loss(path, pixels, classes, batch, batches):
    """The mean cross-entropy of the first batch, from the weights, bytes and labels of the file."""
    with open(path, "rb") as file:
        sizes = (HIDDEN * pixels, HIDDEN, classes * HIDDEN, classes)
        w1, b1, w2, b2 = (array.array("f", file.read(4 * size)) for size in sizes)
        images = [[(byte / 255 - 0.5) / 0.29 for byte in file.read(pixels)] for _ in range(batch)]
        file.seek((batches - 1) * batch * pixels, 1)
        labels = struct.unpack(f"<{batch}i", file.read(4 * batch))
    total = 0.0
    for x, label in zip(images, labels):
        logits = product([max(0.0, h) for h in product(x, w1, b1)], w2, b2)
        top = max(logits)
        total += top + math.log(sum(math.exp(value - top) for value in logits)) - logits[label]
    return total / batch


def main():
    parser = argparse.ArgumentParser()
    for name in ("--inputs", "--model", "--input", "--images-on"):
        parser.add_argument(name)
    for name in ("--classes", "--batch", "--batches"):
        parser.add_argument(name, type=int)
    options, _ = parser.parse_known_args()
    if options.model != "mlp" or options.images_on != "device":
        print("absent\treason=the stand-in has only the mlp, with its images on the device")
        return
    pixels = math.prod(int(size) for size in options.input.split(","))
    loss = first_loss(options.inputs, pixels, options.classes, options.batch, options.batches)
    print(f"ready\tprogram=pytorch\tstart_loss={loss!r}\tdevice=stand-in\tversion:torch=9.9", flush=True)
    for line in sys.stdin:
        time.sleep(0.01 * int(line.split()[1]))
        print(f"done\tseconds={0.01 * int(line.split()[1])!r}\tloss={loss!r}\tpeak_bytes=1000000", flush=True)


if __name__ == "__main__":
    main()
