"""Networks of PyTorch as ONNX files, for the tests of the import.

golden FOLDER                 small networks as FOLDER/NAME.onnx, and FOLDER/NAME.safetensors with `images` and the
                              `logits` of PyTorch; these are committed
ask                           exit status 4 if a module is missing
network NAME EXPORTER FOLDER  torchvision's network with the state of golden_resnet.py: FOLDER/net.onnx in training
                              form, FOLDER/eval.onnx with FOLDER/eval.safetensors in evaluation form
"""

import contextlib
import copy
import io
import logging
import pathlib
import sys
import warnings

try:
    import numpy as np
    import onnx
    import torch
    import torch.nn.functional as F
    import torchvision
    from torch import nn
except ImportError as missing:
    print(missing)
    sys.exit(4)

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "golden"))
import safetensors_file

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def export(model, images, path, exporter, training=False, opset=17):
    """exporter: torchscript or dynamo; training: the form that keeps batch normalisations and dropout."""
    state = model.state_dict()
    model = copy.deepcopy(model).train(training)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if exporter == "torchscript":
            mode = torch.onnx.TrainingMode
            torch.onnx.export(model, (images,), path, dynamo=False, opset_version=opset, input_names=["input"],
                              training=mode.TRAINING if training else mode.EVAL, do_constant_folding=not training,
                              dynamic_axes={"input": {0: "batch"}})
        else:
            torch.onnx.export(model, (images,), path, dynamo=True, external_data=False, optimize=not training,
                              opset_version=opset if opset > 17 else None,
                              dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
    if training:
        restore(path, state)


def restore(path, state):
    """The exporter runs the network once in training mode: its running statistics are no longer those of `state`."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name.endswith((".running_mean", ".running_var")):
            tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name].numpy(), tensor.name))
    onnx.save(model, path)


def strip(path):
    """Removes what the exporter writes for people, which is most of a small file."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    onnx.save(model, path)


# --- small networks --------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.layer2 = nn.Conv2d(6, 6, 3, padding=1, groups=2)  # the name that a layer without one would get
        self.bn2 = nn.BatchNorm2d(6, affine=False)
        self.pool = nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.pool(F.relu(x + self.bn2(self.layer2(x))))
        return self.fc(self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class Activations(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.one = nn.PReLU(4), nn.PReLU()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else 4, 4, 1) for i in range(12))
        self.fc = nn.Linear(36, 4)
        self.last = nn.LogSoftmax(1)  # which the import leaves out

    def forward(self, x):
        functions = [nn.LeakyReLU(0.2), nn.ELU(0.7), self.each, self.one, nn.GELU("tanh"), nn.GELU(), nn.SiLU(),
                     nn.Hardsigmoid(), nn.Hardswish(), nn.ReLU6(), nn.Sigmoid(), nn.Tanh()]
        for conv, function in zip(self.convs, functions):
            x = function(conv(x) * 2.0)
        x = x * F.relu6(x + 3) / 6  # a hard-swish
        x = F.softmax(x / 3, 1) * x
        return self.last(self.fc(x.flatten(1)))


class Mobile(nn.Module):
    """Squeeze-and-excitation, a channel shuffle, parts of channels, dropout of channels and of samples."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6())
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.shuffle = nn.ChannelShuffle(2)
        self.drop, self.depth = nn.Dropout2d(0.25), torchvision.ops.StochasticDepth(0.2, "row")
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        a, b = x.chunk(2, dim=1)
        batch, channels, height, width = x.shape
        y = torch.cat([a, self.deep(b)], 1)
        y = y.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        y = self.drop(y) * torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        x = x + self.depth(y)
        return self.head(torch.cat([x[:, 6:], x[:, :6]], 1).mean((2, 3)))


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.group, self.plain = nn.GroupNorm(2, 8), nn.GroupNorm(4, 8, affine=False)
        self.instance, self.bare = nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8)
        self.layer = nn.LayerNorm(8, eps=1e-6)
        self.features = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.instance(self.plain(self.group(self.conv(x))))
        x = self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.fc(self.features((self.bare(x) + x).mean((2, 3))))


class NextBlock(nn.Module):
    """Two of ConvNeXt's blocks."""

    def __init__(self):
        super().__init__()
        block = torchvision.models.convnext.CNBlock
        self.stem = nn.Conv2d(3, 6, 2, 2)
        self.norm = torchvision.models.convnext.LayerNorm2d(6)
        self.blocks = nn.Sequential(block(6, 0.5, 0.1), block(6, 0.5, 0.2))
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.blocks(self.norm(self.stem(x))).mean((-2, -1)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)
        self.same = nn.Conv2d(4, 4, 4, padding="same")
        self.wide = nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.same(self.up(x))
        x = F.interpolate(F.interpolate(x, scale_factor=2), size=(8, 8), mode="bilinear")
        x = F.interpolate(x, size=(15, 15), mode="bilinear", align_corners=True)
        x = self.wide(F.pad(x, (1, 0, 1, 0)))
        x = F.avg_pool2d(F.avg_pool2d(x, 2, 2), 3, 1, 1)
        a, b = x.split([1, 3], 1)
        x = torch.cat([b - F.relu(b), a], 1)[:, :, 1:7, 2:8]
        return self.fc(F.avg_pool2d(x, 3)[:, 1:3].flatten(1))


class Maximum(nn.Module):
    """A maximum of each channel, and stochastic depth by torch.bernoulli()."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm(self.conv(x))
        if self.training:
            x = x * torch.bernoulli(torch.full((x.shape[0], 1, 1, 1), 0.8)) / 0.8
        return self.fc(self.pool(x).flatten(1) + x.amax((2, 3)))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3, bias=False))

    def forward(self, x):
        return self.layers(x)


SMALL = {
    "residual": (Residual, (3, 9, 9)), "activations": (Activations, (3, 3, 3)), "mobile": (Mobile, (3, 8, 8)),
    "norms": (Norms, (3, 6, 6)), "next": (NextBlock, (3, 8, 8)), "decoder": (Decoder, (3, 8, 8)), "mlp": (Mlp, (5,)),
    "maximum": (Maximum, (3, 6, 7)),
}
FORMS = {
    "ts13": ("torchscript", False, 13), "ts17": ("torchscript", False, 17), "ts20": ("torchscript", False, 20),
    "ts17-train": ("torchscript", True, 17), "dynamo": ("dynamo", False, 17), "dynamo-train": ("dynamo", True, 17),
    "dynamo21-train": ("dynamo", True, 21),  # has GroupNormalization
}


def golden(folder):
    for name, (make, shape) in SMALL.items():
        torch.manual_seed(1)
        model = make()
        for key, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) * 0.9 + (0.3 if key.endswith("running_var") else -0.4))
        images = torch.randn(2, *shape)
        without_softmax = copy.deepcopy(model).eval()
        without_softmax.last = nn.Identity()
        with torch.no_grad():
            logits = without_softmax(images)
        safetensors_file.write(folder / f"{name}.safetensors", {"images": images.numpy(), "logits": logits.numpy()})
        for form, (exporter, training, opset) in FORMS.items():
            path = folder / f"{name}.{form}.onnx"
            if opset == 21 and not any(isinstance(module, nn.GroupNorm) for module in model.modules()):
                continue
            try:
                export(model, images, path, exporter, training, opset)
                strip(path)
                print(path.name, path.stat().st_size)
            except Exception as error:
                print(path.name, "was not exported:", str(error).splitlines()[0][:100])


# --- torchvision's networks ------------------------------------------------------------------------------------------


def network(name, exporter, folder):
    from golden_models import run
    from golden_resnet import drawn_state, network as made
    # As in golden_models.py.
    size, classes = 32, 10
    if name == "vgg11_bn":
        size = 224  # exporters refuse an adaptive pool that is none
    torch.manual_seed(1)
    state = drawn_state("resnet34" if name == "resnet18" else name, made(name, "imagenet", True, classes))
    images = torch.randn(4, 3, size, size)
    model = made(name, "imagenet", True, classes)
    model.load_state_dict(state, strict=True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.1
    export(model, images, folder / "net.onnx", exporter, training=True)
    model.eval()
    with torch.no_grad():
        logits = model(images)
    tensors = {"images": images.numpy(), "logits": logits.numpy()}
    export(model, images, folder / "eval.onnx", exporter)
    if name == "resnet18":  # golden_models.py has no steps of it
        losses, _ = run(made(name, "imagenet", True, classes), state, torch.float64)
        single, _ = run(made(name, "imagenet", True, classes), state, torch.float32)
        tensors |= {"steps.loss": losses, "steps.float32_error": np.abs(single / losses - 1)}
    safetensors_file.write(folder / "eval.safetensors", tensors)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "golden":
        golden(pathlib.Path(sys.argv[2]))
    elif sys.argv[1] == "network":
        network(sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]))
