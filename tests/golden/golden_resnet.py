"""torchvision's ResNets, MobileNets and DenseNet: one training forward and backward in float64, then a prediction."""

import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
import torchvision

from philox import Random

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "programs"))
from pytorch_step import CifarSpeed

SEED = 42
WHOLE = 80         # larger gradients are stored as PRODUCTS dot products with vectors of random signs
PRODUCTS = 32
SIGNS = 777        # random key of these vectors
TRACKED = 5        # num_batches_tracked before the step

# network: name of a case: stem, ReLUs, classes, image size, batch size, number of the batch. For "kinkless", see
# search(). Networks that are no ResNets have their own stem.
CASES = {
    "resnet18": {
        "cifar": ("cifar", True, 10, 32, 8, 0),
        "smooth": ("cifar", False, 10, 16, 7, 0),  # see all_cases()
        "imagenet": ("imagenet", True, 20, 64, 4, 1),
        "kinkless": ("cifar", True, 10, 8, 8, 75),
    },
}
for _network, _number in (("resnet34", 18), ("resnet50", 39), ("resnet101", 36), ("resnet152", 5)):
    CASES[_network] = {
        "smooth": ("cifar", False, 10, 16, 7, 0),
        "imagenet": ("imagenet", True, 20, 64, 4, 1),
        "kinkless": ("cifar", True, 10, 8, 16, _number),
    }
for _network, _number in (("resnext50_32x4d", 50), ("wide_resnet50_2", 121)):
    CASES[_network] = {
        "imagenet": ("imagenet", True, 20, 64, 4, 1),
        "kinkless": ("cifar", True, 10, 8, 16, _number),
    }
CASES["mobilenet_v2"] = {
    "imagenet": ("imagenet", True, 20, 64, 4, 1),
    "kinkless": ("imagenet", True, 10, 48, 8, 262),
}
OTHERS = ("mobilenet_v3_small", "mobilenet_v3_large", "densenet121", "efficientnet_b0", "regnet_y_400mf", "shufflenet_v2_x1_0",
          "convnext_tiny", "googlenet", "vgg11_bn", "cifar_speed")
for _network in OTHERS:
    CASES[_network] = {"imagenet": ("imagenet", True, 20, 32 if _network == "cifar_speed" else 64, 4, 1)}
# The distance of "kinkless" from a kink.
MARGIN = {
    "resnet18": 2e-5, "resnet34": 1e-4, "resnet50": 1e-5, "resnet101": 8e-6, "resnet152": 8e-6,
    "resnext50_32x4d": 4e-5, "wide_resnet50_2": 1.5e-5, "mobilenet_v2": 1.5e-5,
}
# Networks and cases whose running statistics are stored: whole, or as PRODUCTS.
RUNNING = [("resnet18", "cifar"), ("resnet18", "imagenet")]
RUNNING_PRODUCTS = [(_network, "imagenet") for _network in ("resnext50_32x4d", "wide_resnet50_2", "mobilenet_v2", *OTHERS)]


def made(name, classes):
    """GoogLeNet without its auxiliary classifiers, which the engine does not have either."""
    if name == "cifar_speed":
        return CifarSpeed((3, 32, 32), classes)
    options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    return getattr(torchvision.models, name)(num_classes=classes, **options)


def network(name, stem, relu, classes):
    model = made(name, classes)
    if name.startswith("vgg"):  # 64 features in place of 4096
        model.classifier[0], model.classifier[3] = torch.nn.Linear(512 * 7 * 7, 64), torch.nn.Linear(64, 64)
        model.classifier[6] = torch.nn.Linear(64, classes)
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0  # random masks are not PyTorch's
    if stem == "cifar":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = torch.nn.Identity()
    if not relu:
        for module in model.modules():
            if hasattr(module, "relu"):
                module.relu = torch.nn.Identity()
    return model


def of_classifier(name):
    return name.startswith(("fc.", "classifier.", "head."))


def ends_block(network, name):
    """Whether a normalisation is the last one of a block. MobileNetV2's blocks end with `conv.3`, the first with
    `conv.2`, after a convolution without a ReLU."""
    if network == "mobilenet_v2":
        return ".conv.2." in name or ".conv.3." in name
    return (".bn2." if network in ("resnet18", "resnet34") else ".bn3.") in name


def bounds(name, tensor, features):
    """Bounds of a uniform distribution: for weights with torchvision's variance, else wide enough to show errors."""
    if of_classifier(name):
        bound = np.float32(1 / np.sqrt(float(features)))
        return -bound, bound
    if tensor.dim() in (2, 4):  # a convolution, or ConvNeXt's linear layers on each pixel
        bound = np.float32(np.sqrt(6.0 / (tensor.shape[0] * tensor[0, 0].numel())))
        return -bound, bound
    return (0.5, 1.5) if name.endswith(("weight", "running_var")) else (-0.5, 0.5)


def in_order_of_layers(state):
    """The items of a state dict. ConvNeXt's `layer_scale` is the last parameter of its block, as in forward."""
    def place(item):
        index, (key, _) = item
        block = key.removesuffix(".layer_scale")
        return index if block == key else max(i for i, name in enumerate(state) if name.startswith(block + ".")) + 0.5

    return [item for _, item in sorted(enumerate(state.items()), key=place)]


def drawn_state(name, model):
    """A state dict in float32.

    With the distributions of bounds(), rounding errors of gradients grow with the number of blocks, to 1e-2 in 50
    layers. Networks deeper than ResNet18 have other values. The last normalisation of a block has small positive
    weights and biases, so each block adds little to its input. The other biases of normalisations are moved by 3 away
    from zero inside a block, and by +3 elsewhere, so few inputs of ReLUs are close to zero. In MobileNetV2 all of them
    are moved by +3, to the middle between the two kinks of ReLU6.
    """
    features = next(tensor.shape[1] for key, tensor in model.state_dict().items()
                    if tensor.dim() == 2 and of_classifier(key))
    state = {}
    for index, (key, tensor) in enumerate(in_order_of_layers(model.state_dict())):
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(TRACKED)
            continue
        random, count = Random(SEED, "init", index), tensor.numel()
        values = random.between(*bounds(key, tensor, features), count)
        if name != "resnet18" and tensor.dim() == 1 and key.endswith((".weight", ".bias")) and not of_classifier(key):
            if ends_block(name, key):
                values = np.abs(values) * np.float32(0.25)
            elif key.endswith(".bias"):
                inside = key.startswith("layer") and "downsample" not in key
                values += np.where(inside & (values < 0), np.float32(-3), np.float32(3))
        state[key] = torch.tensor(values.reshape(tensor.shape))
    return state


def batch_of(number, batch, size, classes):
    images = Random(SEED, "synthetic", number).symmetric(1, batch * 3 * size * size).reshape(batch, 3, size, size)
    labels = Random(SEED, "synthetic", number, 1).below(classes, batch)
    return torch.tensor(images), torch.tensor(labels.astype(np.int64))


class Result:
    """The values with which the engine is compared."""

    def __init__(self, name, case, dtype):
        stem, relu, classes, size, batch, number = case
        model = network(name, stem, relu, classes)
        model.load_state_dict(drawn_state(name, model), strict=True)
        model.to(dtype)
        images, labels = batch_of(number, batch, size, classes)
        logits = model(images.to(dtype))
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        state = model.state_dict()
        trained = {name for name, _ in model.named_parameters()}
        self.tensors = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
        self.tensors |= {f"running.{name}": state[name] for name in state if name not in trained}
        self.tensors |= {f"gradient.{name}": parameter.grad for name, parameter in model.named_parameters()}
        model.eval()
        with torch.no_grad():
            self.tensors["predictions"] = model(images.to(dtype))
        self.tensors = {name: tensor.numpy().copy() for name, tensor in self.tensors.items()}


# --- a batch without kinks ------------------------------------------------------------------------------------------


def margin(model, images):
    """The smallest distance of a ReLU's input from a kink, relative to the root mean square of its tensor."""
    smallest = []

    def look(module, inputs, output):
        x = inputs[0]
        for kink in (0, 6) if isinstance(module, torch.nn.ReLU6) else (0,):
            smallest.append(((x - kink).abs().min() / x.square().mean().sqrt()).item())

    hooks = []
    for module in model.modules():
        if isinstance(module, (torch.nn.ReLU, torch.nn.ReLU6)):
            module.inplace = False
            hooks.append(module.register_forward_hook(look))
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return min(smallest)


def search(name, batches=range(300)):
    """Finds the number of the batch of "kinkless", and its margin.

    A float32 activation of this network differs from the float64 one by about 1e-6 of its tensor's root mean square. If
    a ReLU's input is closer to zero than that, its derivative may be 0 in one type and 1 in the other. Eight images of
    8x8 have 278,528 such inputs. The expected smallest one is 4e-6. The largest minimum of 300 batches is several times
    that, so rounding cannot cross zero. The batch is chosen by its inputs only, not by its gradients.
    """
    stem, relu, classes, size, batch, _ = CASES[name]["kinkless"]
    model = network(name, stem, relu, classes)
    model.load_state_dict(drawn_state(name, model))
    model.double()
    return max((margin(model, batch_of(number, batch, size, classes)[0].double()), number) for number in batches)


# --- what is stored -------------------------------------------------------------------------------------------------

words = np.empty(0, np.uint64)


def products(flat):
    """Dot products with PRODUCTS vectors of random signs: bit k of the i-th random word is element i of vector k."""
    global words
    if len(words) < flat.size:
        words = Random(SEED, "synthetic", SIGNS).next(flat.size)
    bits = words[: flat.size]
    total = flat.sum()
    return np.array([total - 2 * flat[(bits >> np.uint64(k)) & np.uint64(1) == 1].sum() for k in range(PRODUCTS)])


def scale(name, tensors, network):
    """The norm to which an error is relative: that of the tensor. In networks deeper than ResNet18, the error of a
    normalisation's bias is relative to the gradients of its weight and bias together, because later normalisations
    cancel most of the bias's gradient. Before a 1x1 convolution, without a ReLU, they cancel all of it."""
    own = np.linalg.norm(tensors[name])
    of_normalisation = name.endswith(".bias") and not of_classifier(name.removeprefix("gradient."))
    if network == "resnet18" or not name.startswith("gradient.") or not of_normalisation:
        return own
    return np.hypot(own, np.linalg.norm(tensors[name.removesuffix("bias") + "weight"]))


def as_products(name, values, norm):
    """The root mean square of a difference's products estimates its norm. Errors are relative to `norm`."""
    return {f"{name}.products": products(values.reshape(-1)), f"{name}.norm": np.array([norm])}


def stored(name, values, norm):
    """The whole tensor, or its products. `norm`, to which an error is relative, is stored too, unless it follows from
    the stored tensor."""
    if values.size > WHOLE and ".gradient." in name:
        return as_products(name, values, norm)
    return {name: values} if norm == np.linalg.norm(values) else {name: values, f"{name}.norm": np.array([norm])}


def initial_spread(name):
    """Mean and standard deviation of the parameters that torchvision's constructor draws."""
    torch.manual_seed(0)
    model = made(name, 1000)
    spread = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    return {f"initial.{name}": np.array([p.mean().item(), p.std(unbiased=False).item()]) for name, p in spread.items()}


def worst(exact, single, kind, network):
    """The error of PyTorch's float32: the largest relative error among the tensors of a kind."""
    errors = {
        name: np.linalg.norm(single[name] - exact[name]) / scale(name, exact, network)
        for name in exact
        if name.startswith(kind)
    }
    name = max(errors, key=errors.get, default=None)  # without batch normalisation there are no running statistics
    return errors.get(name, 0), name


def all_cases(name):
    """The images of "smooth" are small because of its biases. Without a ReLU, a bias before a convolution and a
    normalisation matters only at the border of the image. If the border is a small part, the bias gradient is the
    remainder of sums that cancel. The error of PyTorch's float32 is 5e-5 of such a gradient's norm at 32x32, and 8e-6
    at 16x16."""
    tensors = initial_spread(name)
    for case, settings in CASES[name].items():
        exact, single = Result(name, settings, torch.float64).tensors, Result(name, settings, torch.float32).tensors
        for key, values in exact.items():
            if not key.startswith("running."):
                tensors |= stored(f"{case}.{key}", values, scale(key, exact, name))
            elif (name, case) in RUNNING:
                tensors[f"{case}.{key}"] = values
            elif (name, case) in RUNNING_PRODUCTS and values.dtype == np.float64:
                before = drawn_state(name, network(name, *settings[:3]))[key.removeprefix("running.")].numpy()
                tensors |= as_products(f"{case}.{key}", values, np.linalg.norm(values - before))
        for kind in ("logits", "running", "gradient", "predictions"):
            print(name, case, kind, "float32 of PyTorch:", *worst(exact, single, kind, name))
    if "kinkless" not in CASES[name]:
        return tensors
    kept, number = search(name, [CASES[name]["kinkless"][-1]])
    assert kept > MARGIN[name], f"batch {number} of 'kinkless' is within {kept} of a kink; find a better one with search()"
    return tensors | {"kinkless.margin": np.array([kept])}
