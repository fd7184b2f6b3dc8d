"""Writes and reads safetensors files: u64 length, JSON header padded with spaces, data."""

import json
import struct

import numpy as np

TYPES = {"float64": "F64", "int64": "I64", "float32": "F32", "int32": "I32"}


def write(path, tensors):
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, array in ordered:
        header[name] = {
            "dtype": TYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).tobytes())


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
        data = file.read()
    types = {short: np.dtype(name) for name, short in TYPES.items()}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors
