"""From the lines a job writes to how far it is now. The control loop feeds it and asks it at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from paceline.contract import Reported
from paceline.run.pauses import Pauses
from paceline.train.progress import Progress, parse_line

_JUMP_S = 1.0  # less is a clock that is being adjusted
_SOURCES = 8  # a job that is started again is another process


@dataclass(frozen=True)
class JobPosition:
    """Where a job is: batches done, when they were, and batches in all."""

    done: int
    done_s: float
    total: int


class ProgressReader:
    """Sorts a job's output into progress and text, and tells where the job was at its newest report.

    Parameters
    ----------
    on_text:
        Called with every line that is not progress.
    on_malformed:
        Called with the line and what is wrong with it, for lines that carry the marker but no usable progress.
    pauses:
        The pauses after epochs, with what is known of them before.
    reported:
        What the job had reported to the process that read before.

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
        self._recent: deque[tuple[float, int]] = deque(maxlen=16)  # written on our clock, batches done
        self.clock_offset_s: float | None = None  # what is to be added to a time of the job's clock
        self._wall_s: tuple[str, float] | None = None  # by how much a process' wall clock is before its monotonic one
        self._numbers: dict[str, int] = {}  # of the last line of each of the job's processes
        self.pauses = pauses or Pauses()
        self.newest: Progress | None = None
        self.last_malformed: str | None = None
        self.first_s: float | None = None  # when the first batch began
        self.trained_s: float | None = None  # when the last one was done
        if reported is not None:
            self.newest = Progress(
                **reported.model_dump(include={"done", "total", "epoch", "epochs", "loss", "metrics"})
            )
            self.first_s, self.clock_offset_s = reported.first_s, reported.clock_offset_s
            self._numbers = dict(reported.numbers)

    def feed(self, lines: Iterable[str], now_s: float) -> list[Progress]:
        """Take in lines that were read at ``now_s``; return the progress among them, oldest first.

        What was read before, by this process or another, tells where the job is and is not returned again.
        """
        found = []
        for line in lines:
            try:
                progress = parse_line(line)
            except (ValueError, RecursionError) as error:
                self.last_malformed = str(error)
                self._on_malformed(line, str(error))
                continue
            if progress is None:
                self._on_text(line)
                continue
            if self._is_known(progress):
                self._place(progress, self._on_our_clock(progress, now_s))
                continue
            found.append(progress)
            self._take(progress, now_s)
        return found

    @property
    def position(self) -> JobPosition | None:
        """Where the job was at its newest report, or ``None`` if there was none yet."""
        if self.newest is None or not self._recent:
            return None
        return JobPosition(self.newest.done, self._recent[-1][0], self.newest.total)

    def reported(self) -> Reported | None:
        """For the process that reads after this one."""
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
            first_s=self.first_s,
            clock_offset_s=self.clock_offset_s,
            numbers=self._numbers,
        )

    def _is_known(self, progress: Progress) -> bool:
        if not progress.number:  # of a program that does not count its lines
            return False
        last = self._numbers.pop(progress.source, 0)
        self._numbers[progress.source] = max(last, progress.number)  # behind the others, as the newest
        while len(self._numbers) > _SOURCES:
            del self._numbers[next(iter(self._numbers))]
        return progress.number <= last

    def _take(self, progress: Progress, now_s: float) -> None:
        if progress.event == "report":  # metrics without a position
            newest = self.newest
            self.newest = replace(newest, loss=progress.loss, metrics=progress.metrics) if newest else progress
            return
        written_s = self._on_our_clock(progress, now_s)
        if progress.event == "start":
            self._recent.clear()
            self.pauses.interrupt()
            if self.first_s is None:
                self.first_s = written_s
        if self.pauses.take(progress, written_s, self._batch_s()):
            self._recent.clear()
        self.newest = progress
        self._place(progress, written_s)

    def _place(self, progress: Progress, written_s: float) -> None:
        if progress.event == "report":
            return
        self._recent.append((written_s, progress.done))
        if progress.done < progress.total:
            self.trained_s = None
        elif self.trained_s is None:
            self.trained_s = written_s

    def _batch_s(self) -> float | None:
        """Seconds for one batch, by the last reports."""
        if len(self._recent) < 2:
            return None
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last_s - first_s) / (last - first) if last_s > first_s and last > first else None

    def _on_our_clock(self, progress: Progress, now_s: float) -> float:
        """When a line was written, on our clock; by how much the job's clock is off, the quickest line so far tells."""
        if not progress.wall_s:
            return now_s
        self._heed_a_jump(progress)
        offset_s = now_s - progress.wall_s
        if self.clock_offset_s is None or offset_s < self.clock_offset_s:
            self.clock_offset_s = offset_s
        return progress.wall_s + self.clock_offset_s

    def _heed_a_jump(self, progress: Progress) -> None:
        """The job's wall clock may be set while it runs; its monotonic one is not."""
        if not progress.monotonic_s:
            return
        before, self._wall_s = self._wall_s, (progress.source, progress.wall_s - progress.monotonic_s)
        if before is not None and before[0] == progress.source and self.clock_offset_s is not None:
            jump_s = self._wall_s[1] - before[1]
            self.clock_offset_s -= jump_s if abs(jump_s) > _JUMP_S else 0.0
