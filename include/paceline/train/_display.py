"""Shows progress: inside a job as lines for the control loop, elsewhere as a bar or as text.

Called by ``_loop`` and ``_session``, which limit the rate of updates.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TextIO

from ._values import log
from .job import ENV_PROGRESS, is_follower, rank, run_by_paceline
from .progress import Progress

# Up to this size a write to a pipe is atomic, even if loader workers write to it at the same time (PIPE_BUF).
_LONGEST_LINE = 4000
_LINE_ID = 40  # characters of a line's source and number
_RESAMPLES_PER_LINE = 200  # a value has at most 17 characters


_event_numbers = itertools.count(1)


@functools.cache
def _unique_process_id(pid: int) -> str:
    # The process id alone is not unique: it is the same after a restart of the container.
    return f"{pid}-{uuid.uuid4().hex[:8]}"


class Display(Protocol):
    """An output for progress."""

    @property
    def interval_s(self) -> float:
        """Minimum seconds between two progress events."""

    def show(self, progress: Progress) -> None:
        """Show the progress. Never raise: a broken output must not end the job."""

    def close(self) -> None:
        """Finish the output after the loop."""


def choose_display() -> Display:
    """Return ``Lines`` on standard output if Paceline started this process or ``$PACELINE_PROGRESS`` is ``lines``.

    Otherwise, return a display on standard error, like tqdm: a ``Bar`` on a terminal, else ``Text``. With several
    ranks, only rank 0 has an output; followers of data-parallel training have none.
    """
    if is_follower() or rank():
        return Silent()
    if run_by_paceline() or os.environ.get(ENV_PROGRESS) == "lines":
        return Lines(sys.stdout)
    stream = sys.stderr
    return Bar(stream) if stream is not None and stream.isatty() else Text(stream)


class Silent:
    """Shows nothing: another process of the job shows the progress."""

    interval_s = math.inf

    def show(self, progress: Progress) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Lines:
    """Writes one ``paceline.train.progress`` line per event, never on the same line as the training code's output."""

    interval_s = 0.2

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._end = _LineEnd.install(stream) if stream is not None else None
        self._warned = False

    def show(self, progress: Progress) -> None:
        """Write the progress on a new line, in a single write. Resamples go before it, on as many lines as needed.

        Metrics that are too long for the line follow it, as reports.
        """
        for part in _split_resamples(progress):
            for short in _split_metrics(part):
                self._write(short)

    def _write(self, progress: Progress) -> None:
        if self._stream is None:
            return
        progress = replace(progress, source=_unique_process_id(os.getpid()), number=next(_event_numbers))
        line = progress.to_line()
        if len(line) > _LONGEST_LINE:  # a single metric with a long name
            line = replace(progress, metrics={}).to_line()
            if not self._warned:
                log(f"metric omitted: its progress line would exceed {_LONGEST_LINE} characters")
                self._warned = True
        prefix = "\n" if self._end is not None and self._end.unfinished else ""
        stream = self._stream
        if run_by_paceline() and sys.stderr is not None and _is_discarded(stream):
            stream = sys.stderr  # which the job's runtime reads, too
        try:
            stream.write(f"{prefix}{line}\n")
            stream.flush()
        except BrokenPipeError:
            self._stream = None  # the reader has closed the stream
        except OSError:  # such as a full disk: part of the line may have been written
            if self._end is not None:
                self._end.unfinished = True
        except ValueError:  # the training code has closed it
            self._stream = sys.stderr if run_by_paceline() and self._stream is not sys.stderr else None
            self._end = None
            self._write(progress)

    def close(self) -> None:
        """Do nothing."""


def _is_discarded(stream: TextIO) -> bool:
    """Return whether the stream's file descriptor is redirected to ``/dev/null``."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except (OSError, ValueError):  # not a file, or closed
        return False


def _split_resamples(progress: Progress) -> Iterator[Progress]:
    for name, all_of_them in progress.resamples.items():
        for first in range(0, len(all_of_them.values), _RESAMPLES_PER_LINE):
            values = all_of_them.values[first : first + _RESAMPLES_PER_LINE]
            part = replace(all_of_them, values=values, first=first, without=())
            yield replace(progress, loss=None, metrics={}, resamples={name: part})
        if all_of_them.without:
            part = replace(all_of_them, values=(), first=len(all_of_them.values))
            yield replace(progress, loss=None, metrics={}, resamples={name: part})
    yield replace(progress, resamples={})


def _split_metrics(progress: Progress) -> Iterator[Progress]:
    names, length = list(progress.metrics), len(progress.to_line())
    if length < _LONGEST_LINE - _LINE_ID:
        yield progress
        return
    if progress.event != "report":
        yield replace(progress, metrics={})
        progress = replace(progress, event="report")
    middle = len(names) // 2
    if not middle:
        yield progress
        return
    for half in (names[:middle], names[middle:]):
        yield from _split_metrics(replace(progress, metrics={name: progress.metrics[name] for name in half}))


class _LineEnd:
    """Replaces a stream's ``write`` and records whether the last line is unfinished."""

    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write
        self.unfinished = False

    def __call__(self, text: str) -> int:
        if text:
            self.unfinished = not text.endswith("\n")
        return self._write(text)

    @classmethod
    def install(cls, stream: TextIO) -> _LineEnd | None:
        if isinstance(stream.write, cls):
            return stream.write
        end = cls(stream.write)
        try:
            stream.write = end  # type: ignore[method-assign]
        except AttributeError:  # the stream's methods are read-only: assume that its lines are finished
            return None
        return end


class Text:
    """Writes a line of text every 10 s, for a log file or a shell without a terminal."""

    interval_s = 10.0

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def show(self, progress: Progress) -> None:
        """Print one line; ignore checkpoint events."""
        if self._stream is not None and progress.event != "checkpoint":
            self._write(describe(progress) + "\n")

    def close(self) -> None:
        """Do nothing."""

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except (BrokenPipeError, ValueError):
            self._stream = None
        except OSError:  # such as a full disk: the next text may be written again
            pass


class Bar(Text):
    """A progress bar on a terminal: a tqdm bar if tqdm is installed, else one line that is overwritten."""

    interval_s = 0.2

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self._tqdm: Any = None
        self._width = 0
        self._first: Progress | None = None

    def show(self, progress: Progress) -> None:
        """Update the bar."""
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
                self._tqdm.set_postfix_str(_metrics_text(progress), refresh=False)
                self._tqdm.refresh()
            return
        text = describe(progress)
        elapsed_s = progress.monotonic_s - self._first.monotonic_s
        if elapsed_s > 0 and (speed := (progress.done - self._first.done) / elapsed_s) > 0:
            text += f"  {speed:.1f}/s  {(progress.total - progress.done) / speed:.0f} s left"
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def close(self) -> None:
        """Start a new line below the bar."""
        if self._tqdm is not None:
            with contextlib.suppress(OSError, ValueError):
                self._tqdm.close()
        elif self._first is not None:
            self._write("\n")
        self._first = self._tqdm = None


def describe(progress: Progress) -> str:
    """Return the progress as one line of text.

    >>> describe(Progress(done=30, total=120, epoch=1, epochs=4, loss=0.25))
    'epoch 2/4   25.0 %  30/120 batches  loss 0.25'
    >>> describe(Progress(done=1, total=1, event="report", metrics={"accuracy": 0.93}))
    'accuracy 0.93'
    """
    values = _metrics_text(progress)
    if progress.event == "report":
        return values
    text = f"epoch {progress.epoch + 1}/{progress.epochs}  {progress.percent:5.1f} %"
    return f"{text}  {progress.done:,}/{progress.total:,} batches  {values}".rstrip()


def _metrics_text(progress: Progress) -> str:
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
