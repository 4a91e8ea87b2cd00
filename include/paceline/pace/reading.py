"""From the lines a job writes to how far it is now. The control loop feeds it and asks it at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline.train.progress import Progress, parse_line

# The trainer reports at most five times a second: within this long after a report, batches go on unseen.
_REPORT_INTERVAL_S = 0.25


@dataclass(frozen=True)
class Position:
    """Where a job is: ``progress_pct`` now, and how many percent one batch is."""

    progress_pct: float
    batch_pct: float


class ProgressReader:
    """Sorts a job's output into progress and text, and tells where the job is between two reports.

    Parameters
    ----------
    on_text:
        Called with every line that is not progress.
    on_malformed:
        Called with the line and what is wrong with it, for lines that carry the marker but no usable progress.

    Examples
    --------
    >>> reader = ProgressReader(on_text=print)
    >>> _ = reader.feed(["hello", '@paceline {"done": 10, "total": 200, "wall_s": 100.0}'], now_s=100.0)
    hello
    >>> reader.position(now_s=100.0)
    Position(progress_pct=5.0, batch_pct=0.5)
    """

    def __init__(
        self,
        on_text: Callable[[str], None],
        on_malformed: Callable[[str, str], None] = lambda line, reason: None,
    ) -> None:
        self._on_text = on_text
        self._on_malformed = on_malformed
        self._recent: deque[tuple[float, int]] = deque(maxlen=16)  # arrival on our clock, batches done
        self._clock_offset_s: float | None = None
        self.newest: Progress | None = None
        self.last_malformed: str | None = None
        self.finished = False

    def feed(self, lines: Iterable[str], now_s: float) -> list[Progress]:
        """Take in lines that were read at ``now_s``; return the progress among them, oldest first."""
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
            found.append(progress)
            self._take(progress, now_s)
        return found

    def position(self, now_s: float) -> Position | None:
        """Where the job is at ``now_s``, or ``None`` if it has not said yet.

        Batches that must have been done since the last report are counted in by the speed of the last reports,
        for no longer than a report may be late, or less than one whole batch where batches are slow.
        """
        if self.newest is None or self.newest.event == "report":
            return None
        done, total = float(self.newest.done), self.newest.total
        if self.newest.event != "finish" and len(self._recent) >= 2:
            (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
            if last_s > first_s and last > first:
                batches_per_s = (last - first) / (last_s - first_s)
                unseen_s = min(max(now_s - last_s, 0.0), max(_REPORT_INTERVAL_S, 0.9 / batches_per_s))
                done = min(done + batches_per_s * unseen_s, total)
        return Position(100.0 * done / total, 100.0 / total)

    def _take(self, progress: Progress, now_s: float) -> None:
        if progress.event == "report":  # metrics without a position
            if self.newest is None:
                self.newest = progress
            return
        written_s = self._on_our_clock(progress.wall_s, now_s)
        if progress.event == "start":
            self._recent.clear()
            self.finished = False
        self._recent.append((written_s, progress.done))
        self.finished = progress.event == "finish"
        self.newest = progress

    def _on_our_clock(self, wall_s: float, now_s: float) -> float:
        """When a line was written, on our clock; by how much the job's clock is off, the quickest line so far tells."""
        if not wall_s:
            return now_s
        offset_s = now_s - wall_s
        if self._clock_offset_s is None or offset_s < self._clock_offset_s:
            self._clock_offset_s = offset_s
        return wall_s + self._clock_offset_s
