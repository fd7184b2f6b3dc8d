"""PyTorch's upsampling, zero padding, PReLU, softmax, transposed convolutions, and batch normalisation without weights
or running statistics, in float64, on inputs that are exact in float32."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from golden_windows import pair

UPSAMPLES = [  # x, options of F.interpolate
    ((2, 3, 4, 5), dict(scale_factor=2)),
    ((1, 16, 5, 4), dict(size=(7, 9))),
    ((2, 5, 7, 6), dict(size=(3, 4))),
    ((1, 4, 5, 7), dict(scale_factor=1.5)),
    ((1, 2, 9, 11), dict(scale_factor=0.7)),
    ((2, 3, 4, 5), dict(scale_factor=2, mode="bilinear")),
    ((1, 16, 5, 4), dict(size=(7, 9), mode="bilinear")),
    ((2, 5, 7, 6), dict(size=(3, 4), mode="bilinear")),
    ((1, 4, 5, 7), dict(scale_factor=1.7, mode="bilinear")),
    ((1, 8, 1, 3), dict(size=(4, 1), mode="bilinear")),
    ((2, 3, 4, 5), dict(scale_factor=2, mode="bilinear", align_corners=True)),
    ((1, 16, 5, 4), dict(size=(11, 2), mode="bilinear", align_corners=True)),
    ((1, 8, 3, 6), dict(size=(1, 4), mode="bilinear", align_corners=True)),
]
PADS = [((2, 3, 4, 5), (1, 2, 3, 0)), ((1, 16, 6, 5), (-1, 2, 0, -3)), ((2, 4, 5, 7), (-2, -1, -1, -2))]
PRELUS = [((2, 16, 4, 5), 1), ((2, 5, 3, 4), 5), ((4, 13), 13), ((3, 7), 1)]  # x, weights
SOFTMAXES = [(2, 16, 4, 5), (3, 5, 3, 1), (4, 13)]
TRANSPOSED = [  # x, channels, options of nn.ConvTranspose2d
    ((2, 4, 5, 4), 6, dict(kernel_size=2, stride=2)),
    ((2, 8, 4, 5), 4, dict(kernel_size=4, stride=2, padding=1)),
    ((1, 3, 6, 5), 4, dict(kernel_size=3, stride=2, padding=1, output_padding=1)),
    ((2, 6, 4, 4), 4, dict(kernel_size=(3, 2), stride=(1, 3), padding=(1, 0), output_padding=(0, 2), groups=2)),
    ((1, 8, 5, 5), 8, dict(kernel_size=3, stride=2, padding=2, groups=8, dilation=2)),
    ((2, 5, 4, 6), 7, dict(kernel_size=3, bias=False, dilation=(1, 2))),
    ((1, 16, 6, 6), 8, dict(kernel_size=3, padding=1)),
]
NORMS = [  # options of nn.BatchNorm2d
    dict(affine=False), dict(track_running_stats=False), dict(affine=False, track_running_stats=False),
]


class Norms(nn.Module):
    """A normalisation with a ReLU, and one with an addition."""

    def __init__(self, **options):
        super().__init__()
        self.before = nn.Conv2d(5, 5, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(5, **options)
        self.conv = nn.Conv2d(5, 5, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(5, **options)

    def forward(self, x):
        x = self.before(x)
        return self.bn2(self.conv(F.silu(self.bn1(x)))) + x


class Decoder(nn.Sequential):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.act1 = nn.PReLU(8)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear")
        self.pad = nn.ZeroPad2d((1, 0, 2, -1))
        self.up2 = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1)
        self.act2 = nn.PReLU()
        self.up3 = nn.Upsample(size=(9, 11))
        self.softmax = nn.Softmax(dim=1)
        self.flatten = nn.Flatten()
        self.act3 = nn.PReLU(6 * 9 * 11)


def all_layers():
    generator = np.random.default_rng(20291130)

    def uniform(*shape):
        return generator.uniform(-1, 1, shape).astype(np.float32)

    def run(forward, **inputs):
        variables = {name: torch.tensor(x.astype(np.float64), requires_grad=True) for name, x in inputs.items()}
        y = forward(*variables.values())
        dy = uniform(*y.shape)
        y.backward(torch.tensor(dy.astype(np.float64)))
        gradients = {f"d{name}": variable.grad.numpy() for name, variable in variables.items()}
        return inputs | gradients | {"dy": dy, "y": y.detach().numpy()}

    tensors = {}

    def store(name, case):
        tensors.update({f"{name}.{key}": value for key, value in case.items()})

    def run_module(module, shape):
        module = module.double()
        initial = {}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                initial[f"initial.{name}"] = uniform(*parameter.shape)
                parameter.copy_(torch.tensor(initial[f"initial.{name}"].astype(np.float64)))
        case = run(module, x=uniform(*shape))
        after = {f"after.{name}": value.numpy().copy() for name, value in module.named_buffers() if value.dim() > 0}
        with torch.no_grad():
            after["prediction"] = module.eval()(torch.tensor(case["x"].astype(np.float64))).numpy()
        gradients = {f"gradient.{name}": parameter.grad.numpy() for name, parameter in module.named_parameters()}
        return initial | gradients | after | {name: case[name] for name in ("x", "dy", "y")}

    # "how": mode, align_corners, scale_factor, rows above, columns left
    for i, (shape, options) in enumerate(UPSAMPLES):
        how = [options.get("mode") == "bilinear", options.get("align_corners", False), options.get("scale_factor", 0), 0, 0]
        case = run(lambda x: F.interpolate(x, **options), x=uniform(*shape))
        store(f"upsample.{i}", case | {"how": np.array(how, np.float64)})
    for i, (shape, sides) in enumerate(PADS):
        how = [2, 0, 0, sides[2], sides[0]]
        store(f"zero_pad2d.{i}", run(lambda x: F.pad(x, sides), x=uniform(*shape)) | {"how": np.array(how, np.float64)})
    for i, (shape, weights) in enumerate(PRELUS):
        x = uniform(*shape)
        x.flat[0] = 0
        store(f"prelu.{i}", run(F.prelu, x=x, w=uniform(weights)))
    for i, shape in enumerate(SOFTMAXES):
        store(f"softmax.{i}", run(lambda x: F.softmax(x, 1), x=4 * uniform(*shape)))
    # "options": kernel, stride, padding, output_padding, dilation; then groups and bias
    for i, (shape, channels, options) in enumerate(TRANSPOSED):
        before = nn.Conv2d(shape[1], shape[1], 1)
        module = nn.Sequential()
        module.before, module.up = before, nn.ConvTranspose2d(shape[1], channels, **options)
        sizes = [pair(getattr(module.up, name)) for name in ("kernel_size", "stride", "padding", "output_padding", "dilation")]
        numbers = [*np.array(sizes).flat, options.get("groups", 1), options.get("bias", True)]
        store(f"conv_transpose2d.{i}", run_module(module, shape) | {"options": np.array(numbers, np.int64)})
    for i, options in enumerate(NORMS):
        store(f"batch_norm2d.{i}", run_module(Norms(**options), (3, 5, 4, 6)))
    store("decoder.0", run_module(Decoder(), (2, 3, 5, 6)))
    return tensors
