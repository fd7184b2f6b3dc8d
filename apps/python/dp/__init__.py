"""Data-parallel training of convolutional networks on CPUs and GPUs, from one process."""

from . import datasets, models
from ._dp import (
    Adam,
    AdamW,
    Batch,
    DataParallel,
    Dataset,
    EpochReport,
    EvalReport,
    Lamb,
    Lion,
    Loader,
    Model,
    ModelBuilder,
    Muon,
    Node,
    ParameterGroup,
    Predictor,
    RmsProp,
    RunSummary,
    Schedule,
    Sgd,
    Stats,
    StepReport,
    TrainedModel,
    WorkReport,
    __version__,
    cross_entropy,
    default_devices,
    describe_environment,
    from_onnx,
    measure_split,
    model_from_json,
    model_to_json,
    output_loss,
    read_safetensors,
    read_torch_file,
    read_trained_model,
    weights_sha256,
    write_onnx,
    write_safetensors,
)
from ._dp import describe_options as _describe_options
from .errors import DataError, DeviceError, Error, NonfiniteError, StalledError, UsageError, WriteError
from .progress import Progress
from .trainer import Trainer


def help_options(of: str = "Trainer") -> None:
    """Prints the options of a "Trainer" or a "DataParallel", a line each."""
    print(_describe_options(of == "Trainer"), end="")


__all__ = sorted(name for name in globals() if not name.startswith("_") or name == "__version__")
