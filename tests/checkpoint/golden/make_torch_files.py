#!/usr/bin/python3
"""Writes torch_files/ beside itself: files of torch.save for tests/checkpoint/torch_file_test.cpp. Needs PyTorch 2.3 or
newer, and NumPy. Fixed bytes for fixed versions of both."""

import argparse
import io
import pathlib
import zipfile

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent / "torch_files"


def tensors():
    """Value i of each tensor follows from its name in the test."""
    base = torch.arange(24.0)
    state = {
        "matrix": base.reshape(4, 6),
        "transposed": base.reshape(4, 6).t(),
        "column": base.reshape(4, 6)[:, 2],
        "part": base[5:9],
        "parameter": torch.nn.Parameter(base[20:].clone()),
        "double": torch.tensor([0.1, -0.2], dtype=torch.float64),
        "half": torch.tensor([0.5, -2.0, 65504.0], dtype=torch.float16),
        "bfloat": torch.tensor([1.0, -0.15625, 3.0e38], dtype=torch.bfloat16),
        "steps": torch.tensor(7),
        "int": torch.tensor([-(2**31), 5], dtype=torch.int32),
        "short": torch.tensor([-300, 300], dtype=torch.int16),
        "char": torch.tensor([-128, 127], dtype=torch.int8),
        "byte": torch.tensor([0, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
    }
    state["parameter"].note = "with an attribute"  # PyTorch then writes the parameter with its state
    return state


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def checkpoint():
    """As torchvision's and timm's scripts save it, after a step."""
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4])
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    return {
        "model": model.state_dict(),
        "model_ema": average.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": schedule.state_dict(),
        "epoch": 3,
        "best_acc1": torch.tensor(71.5),
        "best_loss": numpy.float64(0.25),
        "args": argparse.Namespace(data_path=pathlib.PurePosixPath("/data"), lr=0.1, device=torch.device("cpu"),
                                   dtype=torch.float32, shape=torch.Size([3, 4]), seed=2**80, opts=None),
    }


def big_endian(data):
    """The same file as a machine with the other byte order would have written it; its only tensor is float32."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/byteorder"):
                content = b"big"
            if "/data/" in name:
                content = numpy.frombuffer(content, "<f4").astype(">f4").tobytes()
            target.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    newer = {
        "float8": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
        "unsigned": torch.tensor([1, 65535], dtype=torch.uint16),
    }
    files = {
        "zip.pth": saved(tensors()),
        "protocol4.pth": saved(tensors(), pickle_protocol=4),
        "legacy.pth": saved(tensors(), _use_new_zipfile_serialization=False),
        "newer.pth": saved(newer),
        "checkpoint.pth": saved(checkpoint()),
        "checkpoint_legacy.pth": saved({"state_dict": network().state_dict(), "epoch": 1},
                                       _use_new_zipfile_serialization=False),
        "big_endian.pth": big_endian(saved({"values": torch.arange(4.0)})),
        "module.pth": saved(network()),
        "complex.pth": saved({"values": torch.zeros(2, dtype=torch.complex64)}),
        "sparse.pth": saved({"values": torch.eye(2).to_sparse()}),
        "expanded.pth": saved({"values": torch.ones(1).expand(4)}),
    }
    values = torch.load(io.BytesIO(files["big_endian.pth"]), weights_only=True)["values"]
    assert torch.equal(values, torch.arange(4.0))
    for name, data in files.items():
        (HERE / name).write_bytes(data)
        print(name, len(data))
