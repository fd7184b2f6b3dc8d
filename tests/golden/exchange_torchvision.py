"""Exchanges a network's weights with torchvision. Arguments: ask, write, check, write-pth or check-pth; a folder; a
network. Exit status 4: torchvision is not installed."""

import argparse
import pathlib
import sys

try:
    import numpy  # noqa: F401, for safetensors_file
    import torch
    from golden_resnet import made
except ImportError as missing:
    print(missing)
    sys.exit(4)

import safetensors_file

CLASSES = 30


def save(path, tensors):
    """Uses the safetensors package if it is installed."""
    try:
        from safetensors.torch import save_file
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except ImportError:
        safetensors_file.write(path, {name: tensor.numpy() for name, tensor in tensors.items()})


def load(path):
    try:
        from safetensors.torch import load_file
        return load_file(path)
    except ImportError:
        return {name: torch.from_numpy(array) for name, array in safetensors_file.read(path).items()}


def model_with(network, state=None):
    model = made(network, CLASSES)
    if state is not None:
        model.load_state_dict(state, strict=True)
    return model


def write_state(folder, network):
    """A state dict after two training forwards, images, and its predictions for them."""
    torch.manual_seed(1)
    model = model_with(network)
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(4, 3, 64, 64))
        model.eval()
        images = torch.randn(3, 3, 64, 64)
        predictions = model(images)
    save(folder / "state.safetensors", model.state_dict())
    save(folder / "expected.safetensors", {"images": images, "predictions": predictions})


def write_checkpoint(folder, network):
    """Beside that, what torchvision's training script saves of the state, in the older format too."""
    write_state(folder, network)
    model = model_with(network, load(folder / "state.safetensors"))
    model.half().float()  # so that the values survive in float16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpoint = {"model": {"module." + name: tensor for name, tensor in model.state_dict().items()},
                  "optimizer": optimizer.state_dict(), "epoch": 3, "args": argparse.Namespace(lr=0.1)}
    torch.save(checkpoint, folder / "zip.pth")
    torch.save(model.state_dict(), folder / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(model.half().state_dict(), folder / "half.pth")


def check_equal(folder, network):
    """Loads the engine's files strictly into torchvision's network: they have the bits of the checkpoint."""
    checkpoint = torch.load(folder / "zip.pth", weights_only=False)["model"]
    for name in ("zip", "legacy", "half"):
        state = model_with(network, load(folder / f"{name}.safetensors")).state_dict()
        assert len(state) == len(checkpoint)
        for key, tensor in state.items():
            assert torch.equal(tensor, checkpoint["module." + key]), f"{name}: {key}"


def check_state(folder, network):
    """Loads the engine's state strictly and compares the predictions with the engine's."""
    state = load(folder / "state.safetensors")
    model = model_with(network, state).eval()
    for name, tensor in model.state_dict().items():
        given = state[name]
        assert tensor.dtype == given.dtype and tensor.shape == given.shape, f"{name}: {given.dtype} {given.shape}"
    counters = [tensor for name, tensor in state.items() if name.endswith("num_batches_tracked")]
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]  # ConvNeXt has none
    assert len(counters) == len(norms)
    assert all(tensor.dtype == torch.int64 and tensor.shape == () for tensor in counters)
    given = load(folder / "expected.safetensors")
    with torch.no_grad():
        predictions = model(given["images"])
    error = ((predictions - given["predictions"]).norm() / predictions.norm()).item()
    print(f"predictions differ by {error:.1e}")
    assert error <= 1e-4


if __name__ == "__main__":
    torch.set_num_threads(1)
    what = {"ask": lambda *_: None, "write": write_state, "check": check_state, "write-pth": write_checkpoint,
            "check-pth": check_equal}[sys.argv[1]]
    what(pathlib.Path(sys.argv[2]), sys.argv[3])
