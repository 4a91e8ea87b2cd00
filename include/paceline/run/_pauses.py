"""The pauses of a job at the end of each epoch, for example for a validation or a new data loader.

The progress reader measures the pauses; the control loop uses the forecast of the remaining pauses.
"""

from __future__ import annotations

from paceline.train.progress import Progress

_FORECAST_SD = 0.3  # relative standard deviation of a pause about the job's own forecast


class Pauses:
    """Measures the pauses of a job and forecasts the remaining pauses.

    A pause is the time from an epoch's last batch to the first report of the next epoch, less the time for batches.

    Parameters
    ----------
    expected_s:
        Mean pause of an earlier run, in seconds; ``None`` without an earlier run.
    from_same_task:
        Whether the earlier run belongs to the same task. If so, its mean pause takes precedence over the job's own
        forecast. A measured pause replaces both forecasts.

    Examples
    --------
    >>> pauses = Pauses()
    >>> _ = pauses.add(Progress(done=99, total=300, epoch=0, epochs=3, event="epoch_end"), 50.0, batch_s=0.5)
    >>> pauses.add(Progress(done=101, total=300, epoch=1, epochs=3), 55.0, batch_s=0.5)
    True
    >>> pauses.mean_s, pauses.left_s(now_s=60.0)
    (4.0, 8.0)
    """

    def __init__(self, expected_s: float | None = None, *, from_same_task: bool = True) -> None:
        self._expected_s, self._same_task = expected_s, from_same_task
        self._reported_s: float | None = None
        self._sum_s, self._count = 0.0, 0
        self._epochs, self._epochs_left = 1, 0
        self._start: tuple[float, float] | None = None  # start of the pause, and seconds per batch before the pause
        self._last = Progress(done=0, total=1)  # the report at the start of the pause

    @property
    def mean_s(self) -> float:
        """Seconds per pause: the measured mean, else a forecast."""
        if self._count:
            return max(self._sum_s / self._count, 0.0)
        forecasts = [self._expected_s, self._reported_s] if self._same_task else [self._reported_s, self._expected_s]
        return next((seconds for seconds in forecasts if seconds is not None), 0.0)

    @property
    def total_s(self) -> float:
        """Total of the job's measured pauses in seconds, extrapolated to all epochs; 0 without a measured pause."""
        return self.mean_s * self._epochs if self._count else 0.0

    @property
    def sd_s(self) -> float:
        """Standard deviation of the last pause, in seconds; 0 if this or an earlier run has measured a pause."""
        return 0.0 if self._count or self._expected_s is not None else _FORECAST_SD * self.mean_s

    def add(self, progress: Progress, written_s: float, batch_s: float | None) -> bool:
        """Add a report; return whether the report ends a pause."""
        ended = False
        # The final checkpoint, after the last batch, is not part of the last pause.
        is_over = progress.epoch > self._last.epoch or progress.done >= progress.total
        if self._start is not None and is_over:
            start_s, batch_before_s = self._start
            self._sum_s += written_s - start_s - (progress.done - self._last.done) * batch_before_s
            self._count += 1
            self._start = None
            ended = True
        self._reported_s = progress.validation_s
        self._epochs = progress.epochs
        self._epochs_left = 0 if progress.done >= progress.total else progress.epochs - progress.epoch
        if progress.event == "epoch_end" and batch_s:
            self._start, self._last = (written_s, batch_s), progress
        return ended

    def interrupt(self) -> None:
        """Discard a pause that a restart of the job interrupts."""
        self._start = None

    def in_pause(self, now_s: float) -> bool:
        """Return whether the job seems to be in a pause: the next batch is overdue."""
        return self._start is not None and now_s - self._start[0] > 1.5 * self._start[1] + 0.3

    def left_s(self, now_s: float) -> float:
        """Return the forecast of the total remaining pause time in seconds."""
        passed_s = max(now_s - sum(self._start), 0.0) if self._start is not None else 0.0
        return max(self._epochs_left * self.mean_s - min(passed_s, self.mean_s), 0.0)
