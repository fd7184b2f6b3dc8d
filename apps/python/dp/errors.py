"""The exceptions of dp. Each kind of failure has a class, and the exit code that dp_train ends with."""


class Error(Exception):
    """Base class. `code`: usage, data, device, nonfinite, timeout or io. `others`: errors of further devices."""

    code = ""
    exit_code = 1
    others: list[str] = []


class UsageError(Error, ValueError):
    """An invalid request: option, name or shape."""

    code = "usage"
    exit_code = 2


class DataError(Error, ValueError):
    """A data set, checkpoint or file is missing, truncated, corrupt or does not fit."""

    code = "data"
    exit_code = 3


class DeviceError(Error, RuntimeError):
    """No such device, or out of its memory."""

    code = "device"
    exit_code = 4


class NonfiniteError(Error, ArithmeticError):
    """NaN or infinity in the loss or the gradients."""

    code = "nonfinite"
    exit_code = 5


class StalledError(Error, TimeoutError):
    """A device or a collective stalled."""

    code = "timeout"
    exit_code = 6


class WriteError(Error, OSError):
    """The disk is full, or a file cannot be written."""

    code = "io"
    exit_code = 7


_KINDS = {kind.exit_code: kind for kind in Error.__subclasses__()}


def make(exit_code: int, message: str, others: list[str]) -> Error:
    """The exception of this kind."""
    error = _KINDS.get(exit_code, Error)(message)
    error.others = others
    return error
