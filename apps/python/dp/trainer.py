"""Trainer: a whole run with epochs, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._dp import DataParallel, Model, NativeTrainer, RunSummary
from .datasets import as_dataset
from .errors import UsageError
from .progress import Progress

_EVENTS = ("on_start", "on_step", "on_eval", "on_epoch", "on_work", "on_checkpoint", "on_message")


class Trainer:
    """Trains a model on data.

    data: a pair (train, test). Each is a dp.Dataset, a pair of arrays (images, labels), or an object with __len__() and
    __getitem__(). options: devices, output_dir, optimizer (dp.Sgd(...) or a name), schedule, metrics ({name: function
    of outputs and labels}), own_loss, first_weights, classes_by_position, parameter_groups, and those that
    dp.help_options("Trainer") lists: the options of dp_train, with underscores. With `resume` the recorded options are
    the defaults.
    """

    def __init__(self, model: Model, data: tuple[Any, Any], **options: Any) -> None:
        if not isinstance(data, (tuple, list)) or len(data) != 2 or getattr(data[0], "ndim", 0) == 4:
            raise UsageError("data is a pair (train, test); dp.datasets.split_off() makes one of a data set")
        train, test = (as_dataset(part) for part in data)
        self._native = NativeTrainer(model, train, test, options)

    def run(self, *, progress: bool = True, on_start: Callable[[DataParallel], None] | None = None,
            on_step: Callable[[Any], None] | None = None, on_eval: Callable[[Any], None] | None = None,
            on_epoch: Callable[[Any], None] | None = None, on_work: Callable[[Any], None] | None = None,
            on_checkpoint: Callable[[str], None] | None = None,
            on_message: Callable[[str], None] | None = None) -> RunSummary:
        """Trains; may be called once. Functions are called on the calling thread, with a report or a text.

        An exception of a function, and Ctrl-C, end the run after the step: what was trained is saved, then the
        exception is raised. `summary` then has the result. progress: shows it, besides calling the functions.
        """
        given = dict(on_start=on_start, on_step=on_step, on_eval=on_eval, on_epoch=on_epoch, on_work=on_work,
                     on_checkpoint=on_checkpoint, on_message=on_message)
        return self._with_callbacks(self._native.run, progress, given)

    def evaluate(self, *, progress: bool = False, on_eval: Callable[[Any], None] | None = None) -> RunSummary:
        """Evaluates the test set once, with the weights of `init` or `resume`."""
        return self._with_callbacks(self._native.evaluate, progress, dict(on_eval=on_eval))

    def stop(self) -> None:
        """Ends the run after the current step and saves; for functions and other threads."""
        self._native.stop()

    def finish(self) -> None:
        """Ends the run after the current step, with an evaluation."""
        self._native.finish()

    @property
    def net(self) -> DataParallel:
        """The DataParallel that is trained. Functions of run() may use it."""
        return self._native.net

    @property
    def summary(self) -> RunSummary | None:
        """The result of the last run, also of one that ended by an exception; None before."""
        return self._native.summary

    def _with_callbacks(self, work: Callable[[dict], RunSummary], progress: bool, given: dict) -> RunSummary:
        shown = Progress() if progress else None

        def both(name: str) -> Callable[[Any], None] | None:
            functions = [function for function in (getattr(shown, name, None), given.get(name)) if function is not None]
            if len(functions) < 2:
                return functions[0] if functions else None

            def call(report: Any) -> None:
                for function in functions:
                    function(report)

            return call

        try:
            return work({name: both(name) for name in _EVENTS})
        finally:
            if shown is not None:
                shown.close()
