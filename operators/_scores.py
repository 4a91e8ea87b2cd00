"""The newest scores of a scoring script, from its progress lines. ``EvaluateOperator`` reads them."""

from __future__ import annotations

from paceline.errors import InvalidInputError
from paceline.train.progress import Progress

_SHOWN = 20  # names in an error message


def scores_in(progress: Progress) -> dict[str, float]:
    """Return the scores in a progress line, in which ``loss`` has a field of its own.

    >>> scores_in(Progress(1, 1, event="report", loss=0.4, metrics={"auc": 0.8}))
    {'auc': 0.8, 'loss': 0.4}
    """
    return progress.metrics if progress.loss is None else {**progress.metrics, "loss": progress.loss}


class Scores:
    """The newest finite value of each score that a script has reported.

    A script's last report counts, so a report that is unreadable, or that may have been lost, is an error.

    >>> scores = Scores("auc")
    >>> scores.add(Progress(1, 1, event="report", metrics={"auc": 0.8}))
    >>> scores.add(Progress(1, 1, event="report", undefined=("auc",)))
    >>> scores.final("challenger")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: metric: got 'auc', expected a finite score from the script, which last reported \
no finite number for the challenger
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._values: dict[str, float] = {}
        self._times_s: dict[str, float] = {}  # when each score was reported
        self._undefined: set[str] = set()
        self._unfinished: set[str] = set()  # processes whose newest line says that another one follows
        self._unreadable: str | None = None  # since the newest line

    def add(self, progress: Progress) -> None:
        """Add the scores of a progress line."""
        if progress.resamples:  # a line of its own, without scores
            return
        newest = {name: score for name, score in scores_in(progress).items() if self._is_newest(name, progress)}
        undefined = {name for name in progress.undefined if self._is_newest(name, progress)}
        for name in undefined:
            self._values.pop(name, None)
        self._undefined = (self._undefined | undefined) - {*newest}
        self._values.update(newest)
        if not progress.number:  # not written by the trainer
            return
        self._unreadable = None
        # A process that has reported values ends a loop that it leaves, and its last delayed report, with a line.
        if progress.newer_follows or (progress.event not in ("finish", "report") and (newest or progress.undefined)):
            self._unfinished.add(progress.source)
        else:
            self._unfinished.discard(progress.source)

    def _is_newest(self, name: str, progress: Progress) -> bool:
        """Return whether no later report of the score was read: jobs have two output streams, read one by one."""
        if progress.number and progress.monotonic_s < self._times_s.get(name, 0.0):
            return False
        self._times_s[name] = progress.monotonic_s
        return True

    def add_unreadable(self, reason: str) -> None:
        """Add a progress line that cannot be read."""
        self._unreadable = reason

    def final(self, role: str) -> dict[str, float]:
        """Return the scores of a script that has ended. ``role`` is the model, for errors.

        Raises
        ------
        InvalidInputError
            If the last report of the metric is not a finite number or may be missing.
        """
        if self._unreadable is not None:
            raise InvalidInputError("script", self._unreadable, f"a readable last report for the {role}")
        if self._unfinished:
            found = f"an end before the last report for the {role} was written"
            raise InvalidInputError("script", found, "a normal end of its processes, without os._exit()")
        if self._metric not in self._values:
            names = sorted(self._values)
            others = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
            reported = f"which reported {', '.join(names[:_SHOWN])}{others}"
            if self._metric in self._undefined:
                reported = "which last reported no finite number"
            elif not names:
                reported = "from which no report arrived"
            accepted = f"a finite score from the script, {reported} for the {role}"
            raise InvalidInputError("metric", self._metric, accepted)
        return self._values
