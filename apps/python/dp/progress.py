"""The progress of a run: a line that is rewritten in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
from typing import Any, TextIO


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell else None
    return found is not None and type(found).__name__ == "ZMQInteractiveShell"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _figures(stats: Any) -> str:
    accuracy = "" if math.isnan(stats.accuracy1) else f"  acc1 {stats.accuracy1:.2f}"
    return f"loss {stats.loss:.4g}{accuracy}"


class Progress:
    """Callbacks that write to `file`, by default standard output. Trainer.run(progress=True) uses them."""

    def __init__(self, file: TextIO | None = None, rewrite: bool | None = None) -> None:
        self._file = file or sys.stdout
        self._rewrite = (self._file.isatty() or _in_notebook()) if rewrite is None else rewrite
        self._open = 0  # characters of the open line

    def _line(self, text: str, end: bool) -> None:
        if self._rewrite:
            from shutil import get_terminal_size  # slow to import

            shown = text[: get_terminal_size().columns - 1]
            self._file.write("\r" + shown + " " * max(0, self._open - len(shown)) + ("\n" if end else ""))
            self._open = 0 if end else len(shown)
        else:
            self._file.write(text + "\n")
        self._file.flush()

    def on_step(self, report: Any) -> None:
        """A line for the epoch so far."""
        text = f"epoch {report.epoch}  [{report.batch + 1}/{report.batches}]  {_figures(report.epoch_so_far)}"
        text += f"  lr {report.lr:.4g}  {report.images_per_second:.0f} img/s  {_duration(report.eta_seconds)} left"
        self._line(text, end=False)

    def on_work(self, report: Any) -> None:
        """A line that is replaced later."""
        if self._rewrite and report.done < max(report.total, 1):
            self._line(report.what + (f"  [{report.done}/{report.total}]" if report.total else " ..."), end=False)

    def on_eval(self, report: Any) -> None:
        """A line for an evaluation outside of a training run."""

    def on_epoch(self, report: Any) -> None:
        """A line for the epoch, which stays."""
        text = f"epoch {report.epoch}"
        if report.train.samples:  # none if a resumed run continues at the end of an epoch
            text += f"  train {_figures(report.train)}"
        if report.test is not None:
            text += f"  test {_figures(report.test.stats)}"
        if report.average is not None:
            text += f"  average {_figures(report.average.stats)}"
        self._line(text + f"  {report.images_per_second:.0f} img/s", end=True)

    def on_message(self, text: str) -> None:
        """A notice."""
        self._line(text, end=True)

    def close(self) -> None:
        """Ends an open line."""
        if self._open:
            self._line("", end=False)
            self._file.write("\r")
            self._file.flush()
