"""How progress is shown: as lines for the control loop inside a job, as a bar or as text for a person otherwise.

Called by ``_loop`` and ``_session``, which see to the rate.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TextIO

from ._values import say
from .job import ENV_PROGRESS, run_by_paceline
from .progress import Progress

# Up to this size one write to a pipe stays whole, whatever worker processes write to it meanwhile (PIPE_BUF).
_LONGEST_LINE = 4000


_numbers = itertools.count(1)


@functools.cache
def _source() -> str:
    # In a container that is started again, this process has the number of the one before.
    return f"{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Display(Protocol):
    """Where progress goes."""

    @property
    def interval_s(self) -> float:
        """Seconds between two progress events at least."""

    def show(self, progress: Progress) -> None:
        """Show it. Never raises: who listens must not end a training."""

    def close(self) -> None:
        """The loop is over."""


def choose_display() -> Display:
    """Return what fits this process: lines on standard output if Paceline started it or ``$PACELINE_PROGRESS`` says so.

    Else, on standard error as tqdm does it, a bar on a terminal or a line of text now and then.
    """
    if run_by_paceline() or os.environ.get(ENV_PROGRESS) == "lines":
        return Lines(sys.stdout)
    stream = sys.stderr
    return Bar(stream) if stream is not None and stream.isatty() else Text(stream)


class Lines:
    """One ``paceline.train.progress`` line for each event, whatever the training prints in between."""

    interval_s = 0.2

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._end = _LineEnd.of(stream) if stream is not None else None
        self._told = False

    def show(self, progress: Progress) -> None:
        """Write the line in one piece, on a line of its own."""
        if self._stream is None:
            return
        progress = replace(progress, source=_source(), number=next(_numbers))
        line = progress.to_line()
        if len(line) > _LONGEST_LINE:
            line = replace(progress, metrics={}).to_line()
            if not self._told:
                say(f"metrics are left out: they make a line longer than {_LONGEST_LINE} characters")
                self._told = True
        begin = "\n" if self._end is not None and self._end.open else ""
        try:
            self._stream.write(f"{begin}{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None  # closed; nobody reads any more

    def close(self) -> None:
        """Nothing stays open."""


class _LineEnd:
    """Takes the place of a stream's ``write`` and remembers whether the last line was left open."""

    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write
        self.open = False

    def __call__(self, text: str) -> int:
        if text:
            self.open = not text.endswith("\n")
        return self._write(text)

    @classmethod
    def of(cls, stream: TextIO) -> _LineEnd | None:
        if isinstance(stream.write, cls):
            return stream.write
        end = cls(stream.write)
        try:
            stream.write = end  # type: ignore[method-assign]
        except AttributeError:  # a stream that allows no attributes: its lines are taken to be closed
            return None
        return end


class Text:
    """A line for people now and then: for a log file, or a shell without a terminal."""

    interval_s = 10.0

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def show(self, progress: Progress) -> None:
        """Print one line; saves are not worth one."""
        if self._stream is not None and progress.event != "checkpoint":
            self._write(describe(progress) + "\n")

    def close(self) -> None:
        """Nothing stays open."""

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class Bar(Text):
    """A progress bar on a terminal: tqdm's where it is installed, else one line that is written over."""

    interval_s = 0.2

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._tqdm: Any = None
        self._width = 0
        self._first: Progress | None = None

    def show(self, progress: Progress) -> None:
        """Move the bar."""
        if progress.event == "report":
            self._write(describe(progress) + "\n")
            return
        if self._first is None:
            self._first = progress
            self._tqdm = _tqdm_bar(progress, self._stream)
        if self._tqdm is not None:
            with contextlib.suppress(OSError, ValueError):
                self._tqdm.total, self._tqdm.n = progress.total, progress.done
                self._tqdm.set_description_str(f"epoch {progress.epoch + 1}/{progress.epochs}", refresh=False)
                self._tqdm.set_postfix_str(_values(progress), refresh=False)
                self._tqdm.refresh()
            return
        text = describe(progress)
        elapsed_s = progress.monotonic_s - self._first.monotonic_s
        if elapsed_s > 0 and (speed := (progress.done - self._first.done) / elapsed_s) > 0:
            text += f"  {speed:.1f}/s  {(progress.total - progress.done) / speed:.0f} s left"
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def close(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._tqdm is not None:
            with contextlib.suppress(OSError, ValueError):
                self._tqdm.close()
        elif self._first is not None:
            self._write("\n")
        self._first = self._tqdm = None


def describe(progress: Progress) -> str:
    """One line for people.

    >>> describe(Progress(done=30, total=120, epoch=1, epochs=4, loss=0.25))
    'epoch 2/4   25.0 %  30/120 batches  loss 0.25'
    >>> describe(Progress(done=1, total=1, event="report", metrics={"accuracy": 0.93}))
    'accuracy 0.93'
    """
    values = _values(progress)
    if progress.event == "report":
        return values
    text = f"epoch {progress.epoch + 1}/{progress.epochs}  {progress.percent:5.1f} %"
    return f"{text}  {progress.done:,}/{progress.total:,} batches  {values}".rstrip()


def _values(progress: Progress) -> str:
    loss = {} if progress.loss is None else {"loss": progress.loss}
    return "  ".join(f"{name} {value:.4g}" for name, value in {**loss, **progress.metrics}.items())


def _tqdm_bar(progress: Progress, stream: TextIO | None) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    with contextlib.suppress(OSError, ValueError):
        return tqdm(total=progress.total, initial=progress.done, unit="batch", file=stream)
    return None
