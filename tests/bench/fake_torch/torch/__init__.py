"""The part of PyTorch that gpu_first.py calls, on a fake device. Each call advances its clock by a fixed time: 10 us
for a convolution, 20 us for one of its backward passes, 3 us for any other kernel, 1 ns for 100 bytes copied, 5 us more
for a launch outside a graph. FAKE_TORCH selects a failure: "old" (no external events), "memory" (no memory for 512
channels), "broken" (every convolution), "libraries" (the import), "no-gpu"."""

import os
import types

FAKE = os.environ.get("FAKE_TORCH", "").split()
if "libraries" in FAKE:
    raise OSError("libcudart.so.13: cannot open shared object file")

__version__ = "9.9"
version = types.SimpleNamespace(cuda="13.9")
bfloat16, float16, uint8, channels_last = "bfloat16", "float16", "uint8", "channels_last"
clock = 0.0  # us
recording = None


def launch(us):
    global clock
    if recording is not None:
        recording.us += us
    else:
        clock += us + 5


class Tensor:
    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def contiguous(self, memory_format):
        return self

    def copy_(self, other, non_blocking=False):
        launch(self.shape[0] / 100e3)

    def add_(self, value):
        launch(3)


def made(*shape, device=None, dtype=None, pin_memory=False):
    return Tensor(shape if not isinstance(shape[0], tuple) else shape[0], dtype)


randn = empty = zeros = made


def set_grad_enabled(value):
    pass


def set_num_threads(value):
    pass


def mm(a, b):
    launch(3)


def check(w):
    if "broken" in FAKE:
        raise RuntimeError("CUDA error: an illegal memory access\nadvice")
    if "memory" in FAKE and w.shape[0] == 512:
        raise cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")


def conv2d(x, w, bias, stride, padding):
    check(w)
    launch(10)


def convolution_backward(dy, x, w, bias, strides, paddings, dilations, transposed, output_paddings, groups, mask):
    check(w)
    assert sum(mask) == 1 and (x.shape[1] > 3 or not mask[0]), "a first layer has no data gradient"
    launch(20)


class Event:
    def __init__(self, enable_timing=False, **more):
        if more and "old" in FAKE:
            raise TypeError("unexpected keyword argument 'external'")
        self.external = bool(more)

    def record(self, stream=None):
        if recording is not None and self.external:
            recording.us += 0.5
        self.at = clock

    def wait(self):
        recording.us += 0.25

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e3


class Stream:
    def wait_event(self, event):
        pass


class CUDAGraph:
    us = 0.0

    def replay(self):
        global clock
        clock += self.us


class graph:
    def __init__(self, graph):
        self.graph = graph

    def __enter__(self):
        global recording
        recording = self.graph

    def __exit__(self, *error):
        global recording
        recording = None


class OutOfMemoryError(RuntimeError):
    pass


cuda = types.SimpleNamespace(
    Event=Event, Stream=Stream, CUDAGraph=CUDAGraph, graph=graph, OutOfMemoryError=OutOfMemoryError, is_available=lambda: "no-gpu" not in FAKE,
    synchronize=lambda: None, empty_cache=lambda: None, current_stream=Stream,
    get_device_properties=lambda i: types.SimpleNamespace(name="Fake GPU", major=9, minor=0, multi_processor_count=132))
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(benchmark=False, benchmark_limit=10, version=lambda: 99100))
ops = types.SimpleNamespace(aten=types.SimpleNamespace(convolution_backward=convolution_backward))
