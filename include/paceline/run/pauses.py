"""How long a job stands still at the ends of its epochs, to validate or to open its loader again.

The progress reader feeds it; the control loop asks how much of that is still to come.
"""

from __future__ import annotations

from paceline.train.progress import Progress


class Pauses:
    """The pauses of a job so far, and those that are left.

    A pause is the time from an epoch's last batch to the first report of the next, less that of the batches in between.

    Parameters
    ----------
    expected_s:
        Mean pause of an earlier run; ``None`` without one.
    is_own:
        Whether it was a run of the same task. Then it counts more than the job's own forecast, until the first pause
        has been measured.

    Examples
    --------
    >>> pauses = Pauses()
    >>> _ = pauses.take(Progress(done=99, total=300, epoch=0, epochs=3, event="epoch_end"), 50.0, batch_s=0.5)
    >>> pauses.take(Progress(done=101, total=300, epoch=1, epochs=3), 55.0, batch_s=0.5)
    True
    >>> pauses.mean_s, pauses.left_s(now_s=60.0)
    (4.0, 8.0)
    """

    def __init__(self, expected_s: float | None = None, *, is_own: bool = True) -> None:
        self._expected_s, self._is_own = expected_s, is_own
        self._announced_s: float | None = None
        self._sum_s, self._count = 0.0, 0
        self._epochs, self._epochs_left = 1, 0
        self._from: tuple[float, float] | None = None  # when the last batch began, seconds for one
        self._last = Progress(done=0, total=1)  # what was reported then

    @property
    def mean_s(self) -> float:
        """Seconds of one pause."""
        if self._count:
            return max(self._sum_s / self._count, 0.0)
        forecasts = [self._expected_s, self._announced_s] if self._is_own else [self._announced_s, self._expected_s]
        return next((seconds for seconds in forecasts if seconds is not None), 0.0)

    @property
    def all_s(self) -> float:
        """Measured pauses of the job in seconds, extrapolated to all epochs; 0 if none was measured."""
        return self.mean_s * self._epochs if self._count else 0.0

    def take(self, progress: Progress, written_s: float, batch_s: float | None) -> bool:
        """Take in a report; returns whether a pause has ended with it."""
        ended = False
        # The final checkpoint follows the last batch; it is not part of the last pause.
        over = progress.epoch > self._last.epoch or progress.done >= progress.total
        if self._from is not None and over:
            from_s, each_s = self._from
            self._sum_s += written_s - from_s - (progress.done - self._last.done) * each_s
            self._count += 1
            self._from = None
            ended = True
        self._announced_s = progress.validation_s
        self._epochs = progress.epochs
        self._epochs_left = 0 if progress.done >= progress.total else progress.epochs - progress.epoch
        if progress.event == "epoch_end" and batch_s:
            self._from, self._last = (written_s, batch_s), progress
        return ended

    def interrupt(self) -> None:
        """The job began again: a pause that was under way is none."""
        self._from = None

    def resting(self, now_s: float) -> bool:
        """Whether the job stands still, as far as one can tell."""
        return self._from is not None and now_s - self._from[0] > 1.5 * self._from[1] + 0.3

    def left_s(self, now_s: float) -> float:
        """Seconds still to come in which the job will not train."""
        passed_s = max(now_s - sum(self._from), 0.0) if self._from is not None else 0.0
        return max(self._epochs_left * self.mean_s - min(passed_s, self.mean_s), 0.0)
