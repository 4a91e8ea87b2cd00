"""Reads a job's progress from its output lines. The control loop passes new lines at every step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from paceline.contract import Reported
from paceline.run._pauses import Pauses
from paceline.train.progress import MARKER, Progress, parse_line

_JUMP_S = 1.0  # a smaller change is a gradual clock adjustment
_MAX_SOURCES = 8  # each restart of the job adds a process


@dataclass(frozen=True)
class JobPosition:
    """The position of a job at a report: batches done, time of the report, and batches in total."""

    done: int
    done_s: float
    total: int


class ProgressReader:
    """Separates a job's output into progress and text, and tracks the job's position.

    Parameters
    ----------
    on_text:
        Called with every line that is not a progress report.
    on_malformed:
        Called with each invalid progress report, and with the error message.
    pauses:
        Tracks the pauses after epochs, with the mean pause of an earlier run if there is one.
    reported:
        The job's last report to an earlier controlling process.

    Examples
    --------
    >>> reader = ProgressReader(on_text=print)
    >>> _ = reader.feed(["hello", '@paceline {"done": 10, "total": 200, "wall_s": 100.0}'], now_s=100.0)
    hello
    >>> reader.position
    JobPosition(done=10, done_s=100.0, total=200)
    """

    def __init__(
        self,
        on_text: Callable[[str], None],
        on_malformed: Callable[[str, str], None] = lambda line, reason: None,
        pauses: Pauses | None = None,
        reported: Reported | None = None,
    ) -> None:
        self._on_text = on_text
        self._on_malformed = on_malformed
        self._recent: deque[tuple[float, int]] = deque(maxlen=16)  # time of a report (local clock), batches done
        self.clock_offset_s: float | None = None  # local time less the time of the job's clock
        self._wall_s: tuple[str, float] | None = None  # process, and its wall clock less its monotonic clock
        self._numbers: dict[str, int] = {}  # last line number of each of the job's processes
        self.pauses = pauses or Pauses()
        self.newest: Progress | None = None
        self.last_malformed: str | None = None
        self._repeats = reported is not None  # whether the output begins with lines that an earlier process has read
        self.first_s: float | None = None  # start of the first batch
        self.trained_s: float | None = None  # end of the last batch
        if reported is not None:
            self.newest = Progress(
                **reported.model_dump(include={"done", "total", "epoch", "epochs", "loss", "metrics", "may_end_early"})
            )
            self.first_s, self.clock_offset_s = reported.first_s, reported.clock_offset_s
            self._numbers = dict(reported.numbers)

    def feed(self, lines: Iterable[str], now_s: float) -> list[Progress]:
        """Process lines that were read at ``now_s``; return the new progress reports, oldest first.

        Reports that this or an earlier process has already read only update the position, and are not returned. Text
        before such a report is not passed on: the earlier process has logged it.
        """
        new_reports = []
        held: list[Callable[[], None]] = []  # text since the last report, which may be that of an earlier process

        def pass_on() -> None:
            for log in held:
                log()
            held.clear()

        for line in self._lines(lines):
            try:
                progress = parse_line(line)
            except (ValueError, RecursionError) as error:
                self.last_malformed = str(error)
                held.append(partial(self._on_malformed, line, str(error)))
                continue
            if progress is None:
                held.append(partial(self._on_text, line))
                continue
            if self._is_known(progress):
                if self._repeats:
                    held.clear()
                self._set_position(progress, self._to_local_clock(progress, now_s))
                continue
            self._repeats = False
            pass_on()
            new_reports.append(progress)
            self._add(progress, now_s)
        pass_on()
        return new_reports

    def _lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines. Separate a progress report from the unfinished line of another program before it."""
        for line in lines:
            begin = line.find(MARKER)
            if begin > 0:
                with contextlib.suppress(ValueError, RecursionError):
                    parse_line(line[begin:])
                    yield line[:begin]
                    line = line[begin:]
            yield line

    @property
    def position(self) -> JobPosition | None:
        """The job's position at its newest report, ``None`` before the first report."""
        if self.newest is None or not self._recent:
            return None
        return JobPosition(self.newest.done, self._recent[-1][0], self.newest.total)

    def reported(self) -> Reported | None:
        """Return the last report for the next controlling process."""
        newest = self.newest
        if newest is None or newest.event == "report":
            return None
        return Reported(
            done=newest.done,
            total=newest.total,
            epoch=newest.epoch,
            epochs=newest.epochs,
            loss=newest.loss,
            metrics=newest.metrics,
            may_end_early=newest.may_end_early,
            first_s=self.first_s,
            clock_offset_s=self.clock_offset_s,
            numbers=self._numbers,
        )

    def _is_known(self, progress: Progress) -> bool:
        if not progress.number:  # the program does not number its lines
            return False
        last = self._numbers.pop(progress.source, 0)
        self._numbers[progress.source] = max(last, progress.number)  # the newest source moves to the end
        while len(self._numbers) > _MAX_SOURCES:
            del self._numbers[next(iter(self._numbers))]
        return progress.number <= last

    def _add(self, progress: Progress, now_s: float) -> None:
        if progress.event == "report":  # a report of metrics has no position
            if progress.resamples:  # this line contains no metrics
                return
            if (newest := self.newest) is None:
                self.newest = progress
                return
            finite = {name: value for name, value in newest.metrics.items() if name not in progress.undefined}
            self.newest = replace(newest, loss=progress.loss, metrics={**finite, **progress.metrics})
            return
        written_s = self._to_local_clock(progress, now_s)
        if progress.event == "start":
            self._recent.clear()
            self.pauses.interrupt()
            if self.first_s is None:
                self.first_s = written_s
        if self.pauses.add(progress, written_s, self._batch_s()):
            self._recent.clear()
        self.newest = progress
        self._set_position(progress, written_s)

    def _set_position(self, progress: Progress, written_s: float) -> None:
        if progress.event == "report":
            return
        self._recent.append((written_s, progress.done))
        if progress.done < progress.total:
            self.trained_s = None
        elif self.trained_s is None:
            self.trained_s = written_s

    def _batch_s(self) -> float | None:
        """Return the mean seconds per batch over the last reports."""
        if len(self._recent) < 2:
            return None
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last_s - first_s) / (last - first) if last_s > first_s and last > first else None

    def _to_local_clock(self, progress: Progress, now_s: float) -> float:
        """Return when a line was written, by the local clock. The line with the least delay determines the offset."""
        if not progress.wall_s:
            return now_s
        self._correct_clock_jump(progress)
        offset_s = now_s - progress.wall_s
        if self.clock_offset_s is None or offset_s < self.clock_offset_s:
            self.clock_offset_s = offset_s
        return progress.wall_s + self.clock_offset_s

    def _correct_clock_jump(self, progress: Progress) -> None:
        """Adjust the offset if the job's wall clock was set; its monotonic clock cannot be set."""
        if not progress.monotonic_s:
            return
        before, self._wall_s = self._wall_s, (progress.source, progress.wall_s - progress.monotonic_s)
        if before is not None and before[0] == progress.source and self.clock_offset_s is not None:
            jump_s = self._wall_s[1] - before[1]
            self.clock_offset_s -= jump_s if abs(jump_s) > _JUMP_S else 0.0
